"""Settings from flags, the settings file and the defaults, in that order.

The file is that of ``--config`` or ``INSITU_CONFIG``. Not here: which settings there are
(``fields``). Always true: unknown keys and values that their kind refuses are refused by name.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insitu.settings.fields import FIELDS, Settings
from insitu.settings.kinds import WrongValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.settings.kinds import Kind

CONFIG_VARIABLE = "INSITU_CONFIG"
_MAX_FILE_BYTES = 1 << 20


class SettingError(Exception):
    """A setting that cannot be used: its name, the value given, and what is wanted."""


def flag_of(name: str) -> str:
    """The flag of a field: ``max_num_seqs`` is ``--max-num-seqs``."""
    return "--" + name.replace("_", "-")


def numeric_fields() -> tuple[str, ...]:
    """The settings that can change a bit of the output."""
    return tuple(name for name, f in FIELDS.items() if f.metadata["numeric"])


def read_value(name: str, raw: Any, where: str) -> Any:
    """One value through its field's kind; the error names the field and where the value stood."""
    kind: Kind = FIELDS[name].metadata["kind"]
    try:
        return kind.read(raw)
    except WrongValue as refused:
        raise SettingError(f"{where}: {refused} is wanted, not {raw!r}.") from None


def read_file(path: Path) -> dict[str, Any]:
    """The settings file's checked values."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise SettingError(f"settings file {path}: over {_MAX_FILE_BYTES} bytes.")
        values = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise SettingError(f"settings file {path}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise SettingError(f"settings file {path}: {error}.") from error
    except RecursionError as error:
        raise SettingError(f"settings file {path}: nested too deep.") from error
    if unknown := sorted(set(values) - set(FIELDS)):
        raise SettingError(
            f"settings file {path}: unknown key {unknown[0]!r} (known: {', '.join(FIELDS)})."
        )
    return {name: read_value(name, raw, f"{path}: {name}") for name, raw in values.items()}


def load_settings(
    flags: Mapping[str, Any],
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags given (absent or None: not given), then the file, then the defaults."""
    variables = os.environ if environment is None else environment
    chosen = config or (
        Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None
    )
    values = read_file(chosen) if chosen is not None else {}
    for name, raw in flags.items():
        if name not in FIELDS:
            raise SettingError(f"unknown setting {name!r} (known: {', '.join(FIELDS)}).")
        if raw is not None and raw != ():
            values[name] = read_value(name, raw, flag_of(name))
    return Settings(**values)
