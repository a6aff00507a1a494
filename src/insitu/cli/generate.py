"""The verb ``generate``: one text in, its continuation (or, with --chat, an answer) out.

Not here: flags of sampling and settings (``sampling``, ``flags``). Standard output carries the text
and nothing else; warnings go to standard error.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from insitu.cli.flags import settings_flags
from insitu.cli.sampling import for_a_chat, sampling_flags, sampling_of
from insitu.settings.fields import ENGINE_FIELDS, STORE_FIELDS

if TYPE_CHECKING:
    from insitu.cli.turn import Answer
    from insitu.sampling_params import SamplingParams
    from insitu.settings.fields import Settings
    from insitu.types import Request


@click.command("generate")
@click.argument("model")
@click.argument("text", required=False)
@click.option("--chat", "is_chat", is_flag=True, help="Send the text as a chat message.")
@click.option("--system", metavar="TEXT", help="A system message before it (with --chat).")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object with ids and usage.")
@sampling_flags
@settings_flags((*STORE_FIELDS, *ENGINE_FIELDS))
def generate_command(settings: Settings, model: str, text: str | None, **options: Any) -> None:
    """Complete TEXT (standard input without it, or for `-`) with MODEL and print what comes.

    With --chat, --temperature is 0.7 where neither you nor the model's file gives one, as in
    `insitu chat`.
    """
    import asyncio

    from insitu.cli.opening import locate, open_generator
    from insitu.cli.turn import run

    if options["system"] is not None and not options["is_chat"]:
        raise click.UsageError("--system needs --chat.")
    sampling = sampling_of(options)
    text = _text(text)
    generator = open_generator(locate(model, settings), settings)
    if options["is_chat"]:
        sampling = for_a_chat(sampling, generator)
    request = _request(generator.describe().name, text, sampling, options)
    try:
        with asyncio.Runner() as runner:
            show = _ignore if options["is_json"] else _write
            answer = run(generator, request, runner, show)
    finally:
        generator.close()
    _finish(answer, model, is_json=options["is_json"])


def _text(text: str | None) -> str:
    if text is None and sys.stdin.isatty():
        raise click.UsageError("Give the TEXT to complete, or pipe it in.")
    if text is not None and text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise click.ClickException(f"standard input is not UTF-8 text: {error}.") from error


def _request(model: str, text: str, sampling: SamplingParams, options: dict[str, Any]) -> Request:
    from insitu.cli.turn import new_request_id
    from insitu.types import Message, Request

    if not options["is_chat"]:
        return Request(new_request_id(), model, prompt=text, sampling=sampling)
    system = options["system"]
    before = () if system is None else (Message("system", system),)
    messages = (*before, Message("user", text))
    return Request(new_request_id(), model, messages=messages, sampling=sampling)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _ignore(_: str) -> None:
    return


def _finish(answer: Answer, model: str, *, is_json: bool) -> None:
    warnings = answer.prepared.warnings if answer.prepared is not None else ()
    if not is_json:
        if not answer.text.endswith("\n"):
            click.echo()
        for warning in warnings:
            click.echo(f"insitu: {warning}", err=True)
    else:
        click.echo(json.dumps(_as_json(answer, model, warnings), ensure_ascii=False))
    if answer.finish_reason is None:
        sys.exit(130)


def _as_json(answer: Answer, model: str, warnings: tuple[str, ...]) -> dict[str, Any]:
    usage = answer.usage
    return {
        "model": model,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "seed": answer.prepared.seed if answer.prepared is not None else None,
        "usage": None
        if usage is None
        else {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "warnings": list(warnings),
    }
