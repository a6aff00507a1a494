"""The table of verbs: ``insitu VERB ...``.

Not here: what a verb does. Always true: what a user can cause ends as one line on standard error
and status 2; only our own mistakes show a traceback.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

# verb -> (module of this room, what `insitu --help` says of it)
VERBS = {
    "chat": ("chat", "Talk with a model in the terminal."),
    "generate": ("generate", "Complete one text and print it."),
    "serve": ("serve", "Serve a model over HTTP."),
    "key": ("key", "Draw an API key and its line of a key file."),
    "pull": ("models", "Bring a model onto this machine."),
    "list": ("models", "Show which models are here."),
    "rm": ("models", "Delete a pulled model."),
    "plan": ("plan", "Show the memory a model needs, and the settings that change bits."),
    "bench": ("bench", "Measure a model against what this machine can do."),
    "evaluate": ("evaluate", "Judge a model by a text, alone or against another."),
    "quantize": ("quantize", "Write a model with fewer bits a weight."),
}


class Verbs(click.Group):
    """Finds a verb's module when it is wanted, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every verb, in the table's order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb, from its module."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"insitu.cli.{VERBS[cmd_name][0]}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it; an unknown verb's message names those that are."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(f"No such command {args[0]!r}: {', '.join(VERBS)} are known.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table itself, without importing a verb."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"insitu {version('insitu')}")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def insitu() -> None:
    """Run language models where the data is: one process, an OpenAI-compatible API, exact bits."""


def main() -> NoReturn:
    """Run the command line and end the process with its status."""
    _open_standard_streams()
    try:
        status = insitu.main(standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else str(error))
        sys.exit(2)
    except click.ClickException as error:
        fail(error.format_message())
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output is gone; so is what we would say.
        _drop_output()
        sys.exit(1)
    except MemoryError:
        fail(
            "out of memory. Raise the limit (ulimit -v, the container's), or lower "
            "--kv-cache-bytes or --max-num-batched-tokens; `insitu plan` shows what is needed."
        )
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _WRITE_ERRORS and error.filename is None:
            _drop_output()
            fail(f"cannot write the output: {error.strerror}.")
        if not _is_users(error):
            raise
        fail(str(error))
    sys.exit(status if isinstance(status, int) else 0)


def _open_standard_streams() -> None:
    """Stand /dev/null in for each that is closed, lest the next file opened take its number."""
    modes = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
    for number, (name, mode) in enumerate(modes):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode))


def _drop_output() -> None:
    """Send what is still to be written nowhere: writing it would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str) -> NoReturn:
    """Say what is wrong on standard error, and end with status 2."""
    click.echo(f"insitu: {message}", err=True)
    sys.exit(2)


# A full disk, a broken device, a closed or unwritable descriptor.
_WRITE_ERRORS = frozenset((errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG))

# Errors that a user can cause, by the module they live in; only rooms already imported can raise.
_USER_ERRORS = (
    ("insitu.settings.load", "SettingError"),
    ("insitu.refusal", "Refusal"),
    ("insitu.refusal", "RequestFailed"),
    ("insitu.policy.keys", "KeyFileError"),
    ("insitu.catalog.errors", "CatalogError"),
    ("insitu.weights.errors", "ModelFileError"),
    ("insitu.weights.locate", "ModelNotFound"),
    ("insitu.engine.plan", "PlanError"),
    ("insitu.kernels.native", "NativeError"),
    ("insitu.bench.errors", "BenchError"),
    ("insitu.evaluate.errors", "EvaluateError"),
    ("insitu.server.address", "ListenError"),
    ("insitu.quantize.errors", "QuantizeError"),
)


def _is_users(error: Exception) -> bool:
    for module_name, class_name in _USER_ERRORS:
        kind = getattr(sys.modules.get(module_name), class_name, None)
        if kind is not None and isinstance(error, kind):
            return True
    return isinstance(error, OSError) and error.filename is not None
