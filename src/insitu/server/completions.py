"""POST /v1/completions: a text or ids to be continued.

Always true: with ``return_token_ids`` each choice (each chunk's, in a stream) carries the ids of
its own text, and its ``logprobs`` name tokens by id too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from insitu.server.answer import new_id, prepare, send_deltas
from insitu.server.dialects import OPENAI
from insitu.server.logprobs import CompletionLogprobs, Echo
from insitu.server.record import record_of
from insitu.server.service import read_wire, service_of
from insitu.server.several import side_by_side
from insitu.server.shape import Head, by_choice, head_of, usage_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.refusal import Refusal
    from insitu.types import Delta, Generator, Prepared, Usage
    from insitu.types import Request as Asked


async def create_completion(request: Request) -> Response:
    """Continue a prompt, whole or as a stream."""
    from insitu.server.schema_completions import (  # noqa: PLC0415 - slow to import
        CompletionRequest,
    )

    generator = service_of(request).generator
    wire = await read_wire(request, CompletionRequest)
    prepared = await _prepare_all(request, wire.to_requests(new_id("cmpl")))
    num_choices = prepared[0].request.sampling.n
    head = head_of(
        generator.describe(),
        prepared[0],
        token_ids=bool(wire.return_token_ids),
        usage=wire.has_usage_chunk,
    )
    seeds = [one.seed for one in prepared for _ in range(num_choices)]
    shape = CompletionShape(
        replace(head, num_choices=len(seeds)),
        has_logprobs=wire.logprobs is not None,
        echoes=await _echoes(generator, prepared, num_choices) if wire.echo else None,
        seeds=seeds if len(prepared) > 1 else None,
    )
    caller = record_of(request.scope).caller
    streams = [generator.stream(one, caller) for one in prepared]
    deltas = streams[0] if len(streams) == 1 else side_by_side(streams, num_choices)
    return await send_deltas(request, deltas, shape, is_stream=bool(wire.stream))


async def _prepare_all(request: Request, asked: list[Asked]) -> list[Prepared]:
    """Prompts as ids; where no seed was given, each has the one after the prompt's before it."""
    prepared: list[Prepared] = []
    for place, one in enumerate(asked):
        if place and one.sampling.seed is None:
            seed = (prepared[0].seed + place) % 2**64
            one = replace(one, sampling=replace(one.sampling, seed=seed))  # noqa: PLW2901
        is_last = place == len(asked) - 1
        prepared.append(await prepare(request, one, names={}, is_last=is_last))
    return prepared


async def _echoes(generator: Generator, prepared: list[Prepared], num_choices: int) -> list[Echo]:
    """For each choice the text that it continues, as it was given or as its ids read."""
    echoes = []
    for one in prepared:
        prompt = one.request.prompt
        text = prompt if isinstance(prompt, str) else await generator.detokenize(prompt or ())
        first = await generator.detokenize(one.prompt_ids[:1])
        echoes += [Echo(text, first)] * num_choices
    return echoes


class CompletionShape:
    """Words a text completion."""

    dialect = OPENAI

    def __init__(
        self,
        head: Head,
        *,
        has_logprobs: bool,
        echoes: list[Echo] | None = None,
        seeds: list[int] | None = None,
    ) -> None:
        self._head = head
        self._echoes: dict[int, Echo] = dict(enumerate(echoes or ()))
        self._seeds = seeds
        self._has_notes = True
        self._logprobs = [
            CompletionLogprobs(has_token_ids=head.has_token_ids) if has_logprobs else None
            for _ in range(head.num_choices)
        ]

    def opening(self) -> Iterable[dict[str, Any]]:
        """For each choice its prompt, where it is to be repeated: a completion has no role."""
        if self._logprobs[0] is None:  # else it goes with those of its tokens
            for index in list(self._echoes):
                yield self._noted(self._choice(index, []))

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """One chunk a delta; the first also carries what the answer reports."""
        yield self._noted(self._choice(delta.index, [delta]))

    def _noted(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = self._head.chunk("text_completion", choice)
        if self._has_notes:
            chunk.update(self._head.notes())
            self._has_notes = False
        return chunk

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        logprobs, echo = self._logprobs[index], self._echoes.pop(index, None)
        finish = next((one.finish_reason for one in deltas if one.finish_reason), None)
        choice: dict[str, Any] = {
            "index": index,
            "text": (echo.text if echo else "") + "".join(delta.content for delta in deltas),
            "logprobs": None if logprobs is None else _taken(logprobs, echo, deltas),
            "finish_reason": finish and finish.value,
        }
        if self._seeds is not None:
            choice["seed"] = self._seeds[index]
        if self._head.has_token_ids:
            choice["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
        return choice

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """The chunk that only counts, where it was asked for."""
        return self._head.closing("text_completion", usage)

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """The one event of a failure."""
        return self._head.failing(refusal)

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        fields = self._head.fields("text_completion")
        of_choice = by_choice(deltas, self._head.num_choices)
        choices = [self._choice(index, one) for index, one in enumerate(of_choice)]
        return {**fields, "choices": choices, "usage": usage_fields(usage), **self._head.notes()}


def _taken(logprobs: CompletionLogprobs, echo: Echo | None, deltas: list[Delta]) -> dict[str, Any]:
    """The log-probabilities of deltas, after those of a prompt that begins the text."""
    tokens = [one for delta in deltas for one in delta.logprobs]
    if echo is None:
        return logprobs.take(tokens)
    begun = logprobs.begin(echo, [one for delta in deltas for one in delta.prompt_logprobs])
    rest = logprobs.take(tokens)
    return {name: values + rest[name] for name, values in begun.items()}
