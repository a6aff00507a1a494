"""Flags made from the fields of ``Settings``: what a field says there is all that is said of it.

Not here: the fields themselves. Always true: a flag that is not given stays out of the way of the
settings file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from insitu.settings.fields import FIELDS, Settings
from insitu.settings.load import flag_of, load_settings, read_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Decorated = Callable[..., Any]


def settings_flags(names: Iterable[str]) -> Callable[[Decorated], Decorated]:
    """Add ``--config`` and one flag for each named field; hand the command a ``settings``."""
    chosen = tuple(names)

    def decorate(command: Decorated) -> Decorated:
        def run(config: Path | None, **values: Any) -> Any:
            flags = {name: values.pop(name) for name in chosen}
            return command(settings=_loaded(flags, config), **values)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
        config = click.option(
            "--config",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Settings file, TOML [default: INSITU_CONFIG].",
        )
        decorated = config(run)
        for name in reversed(chosen):
            decorated = _option(name)(decorated)
        return decorated

    return decorate


def _loaded(flags: dict[str, Any], config: Path | None) -> Settings:
    return load_settings(flags, config)


def _option(name: str) -> Callable[[Decorated], Decorated]:
    field = FIELDS[name]
    kind = field.metadata["kind"]
    text = field.metadata["help"] + (
        " (numeric: can change bits)" if field.metadata["numeric"] else ""
    )
    default = field.default
    if default not in (None, (), False) and "[default" not in text:
        text = f"{text} [default: {default}]"
    if kind.is_flag:
        return click.option(flag_of(name), name, is_flag=True, default=None, help=text)
    return click.option(
        flag_of(name),
        name,
        metavar=kind.metavar,
        multiple=kind.is_repeatable,
        default=None,
        callback=_read,
        help=text,
    )


def _read(_: click.Context, param: click.Parameter, raw: Any) -> Any:
    if raw is None or raw == () or param.name is None:
        return None
    return read_value(param.name, raw, flag_of(param.name))


def read_counts(flag: str, raw: str, most: int) -> tuple[int, ...]:
    """Whole numbers from 1 to ``most`` with commas between."""
    words = [word.strip() for word in raw.split(",") if word.strip()]
    good = all(word.isascii() and word.isdigit() and 1 <= int(word) <= most for word in words)
    if not good or not words or len(raw) > 1000:
        wanted = f"whole numbers from 1 to {most}, with commas between"
        raise click.UsageError(f"{flag}: {wanted} are wanted, not {raw!r}.")
    return tuple(int(word) for word in words)
