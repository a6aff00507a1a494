"""POST /v1/completions: a text or ids to be continued.

Always true: with ``return_token_ids`` each choice (each chunk's, in a stream) carries the ids of
its own text, and its ``logprobs`` name tokens by id too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.answer import answer, new_id, prepare
from insitu.server.dialects import OPENAI
from insitu.server.logprobs import CompletionLogprobs
from insitu.server.service import read_wire, service_of
from insitu.server.shape import Head, by_choice, head_of, usage_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.refusal import Refusal
    from insitu.types import Delta, Usage


async def create_completion(request: Request) -> Response:
    """Continue a prompt, whole or as a stream."""
    from insitu.server.schema_completions import (  # noqa: PLC0415 - slow to import
        CompletionRequest,
    )

    service = service_of(request)
    wire = await read_wire(request, CompletionRequest)
    prepared = await prepare(request, wire.to_request(new_id("cmpl")), names={})
    head = head_of(
        service.generator.describe(),
        prepared,
        token_ids=bool(wire.return_token_ids),
        usage=wire.has_usage_chunk,
    )
    shape = CompletionShape(head, has_logprobs=wire.logprobs is not None)
    return await answer(request, prepared, shape, is_stream=bool(wire.stream))


class CompletionShape:
    """Words a text completion."""

    dialect = OPENAI

    def __init__(self, head: Head, *, has_logprobs: bool) -> None:
        self._head = head
        self._has_notes = True
        self._logprobs = [
            CompletionLogprobs(has_token_ids=head.has_token_ids) if has_logprobs else None
            for _ in range(head.num_choices)
        ]

    def opening(self) -> Iterable[dict[str, Any]]:
        """Nothing: a completion has no role."""
        return ()

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """One chunk a delta; the first also carries what the answer reports."""
        chunk = self._head.chunk("text_completion", self._choice(delta.index, [delta]))
        if self._has_notes:
            chunk.update(self._head.notes())
            self._has_notes = False
        yield chunk

    def _choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        logprobs = self._logprobs[index]
        finish = next((one.finish_reason for one in deltas if one.finish_reason), None)
        tokens = [one for delta in deltas for one in delta.logprobs]
        choice: dict[str, Any] = {
            "index": index,
            "text": "".join(delta.content for delta in deltas),
            "logprobs": None if logprobs is None else logprobs.take(tokens),
            "finish_reason": finish and finish.value,
        }
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
