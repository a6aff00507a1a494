"""The verb ``chat``: a conversation in the terminal, streamed.

Lines of standard input are turns; where that is no terminal nothing but the answers is written to
standard output. Not here: templates and tokens (``llm``). Always true: a conversation is kept in
memory only, and is gone when the command ends.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from insitu.cli.flags import settings_flags
from insitu.cli.sampling import for_a_chat, sampling_flags, sampling_of
from insitu.settings.fields import ENGINE_FIELDS, STORE_FIELDS

if TYPE_CHECKING:
    import asyncio

    from insitu.sampling_params import SamplingParams
    from insitu.settings.fields import Settings
    from insitu.types import Generator, Message

HELP = "/exit ends (so does Ctrl-D), /reset begins anew, Ctrl-C stops an answer."


@click.command("chat")
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="A system message before the conversation.")
@sampling_flags
@settings_flags((*STORE_FIELDS, *ENGINE_FIELDS))
def chat_command(settings: Settings, model: str | None, system: str | None, **options: Any) -> None:
    """Talk with MODEL; without one, with the default model, pulled first if it is not here.

    Here --temperature is 0.7 where neither you nor the model's file gives one: a conversation wants
    less noise than a sample.
    """
    import asyncio

    from insitu.cli.opening import locate_or_pull, open_generator

    sampling = sampling_of(options)
    generator = open_generator(locate_or_pull(model, settings), settings)
    sampling = for_a_chat(sampling, generator)
    try:
        with asyncio.Runner() as runner:
            Conversation(generator, runner, sampling, system).hold()
    finally:
        generator.close()


class Conversation:
    """Turns so far, and the loop that adds to them."""

    def __init__(
        self,
        generator: Generator,
        runner: asyncio.Runner,
        sampling: SamplingParams,
        system: str | None,
    ) -> None:
        self._generator = generator
        self._runner = runner
        self._sampling = sampling
        self._system = system
        self._turns: list[Message] = []
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def hold(self) -> None:
        """Take turns until the user leaves."""
        if self._is_terminal:
            import readline  # noqa: F401 (line editing and history for input())

            card = self._generator.describe()
            click.echo(f"{card.name}, {card.max_model_len} tokens. {HELP}", err=True)
        while (line := self._next_line()) is not None:
            if line in ("/exit", "/quit", "/bye"):
                return
            if line == "/reset":
                self._turns.clear()
                click.echo("a new conversation", err=True)
            elif line == "/help":
                click.echo(HELP, err=True)
            elif line.startswith("/") and " " not in line and self._is_terminal:
                click.echo(f"{line} is no command. {HELP}", err=True)
            elif line:
                self._take_turn(line)

    def _next_line(self) -> str | None:
        try:
            return input("> " if self._is_terminal else "").strip()
        except EOFError:
            if self._is_terminal:
                click.echo(err=True)
            return None
        except KeyboardInterrupt:
            if not self._is_terminal:
                raise
            click.echo("\n/exit ends", err=True)  # the answer it was meant for may just be over
            return ""

    def _take_turn(self, text: str) -> None:
        from insitu.cli.turn import new_request_id, run
        from insitu.refusal import Refusal
        from insitu.types import Message, Request

        before = () if self._system is None else (Message("system", self._system),)
        messages = (*before, *self._turns, Message("user", text))
        request = Request(
            new_request_id(),
            self._generator.describe().name,
            messages=messages,
            sampling=self._sampling,
        )
        try:
            think = _write_dim if self._is_terminal else _ignore
            answer = run(self._generator, request, self._runner, _write, think)
        except Refusal as refusal:
            if not self._is_terminal:
                raise
            click.echo(f"insitu: {refusal} (/reset begins anew)", err=True)
            return
        _write("\n")
        self._turns += [Message("user", text), Message("assistant", answer.text)]
        if answer.finish_reason is None:
            click.echo("stopped", err=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_dim(text: str) -> None:
    """What the model thinks, which is no part of its answer."""
    _write(click.style(text, dim=True))


def _ignore(_: str) -> None:
    """Nothing but answers is written where nobody looks on."""
