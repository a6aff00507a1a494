"""POST /v1/chat/completions: one request whole, from its bytes to its answer.

Always true: a stream's first delta has the role, and ids and log-probabilities ride on the chunk
that carries their text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.answer import answer, new_id, prepare
from insitu.server.dialects import OPENAI
from insitu.server.logprobs import chat_logprobs
from insitu.server.service import read_wire, service_of
from insitu.server.shape import Head, by_choice, head_of, usage_fields
from insitu.types import joined_calls

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.refusal import Refusal
    from insitu.types import Delta, ToolCallPiece, Usage


async def create_chat_completion(request: Request) -> Response:
    """Answer a chat, whole or as a stream."""
    from insitu.server.schema_chat import ChatCompletionRequest  # noqa: PLC0415 - slow to import

    service = service_of(request)
    wire = await read_wire(request, ChatCompletionRequest)
    asked = wire.to_request(new_id("chatcmpl"))
    prepared = await prepare(request, asked, names={"max_tokens": wire.limit_field})
    head = head_of(
        service.generator.describe(),
        prepared,
        token_ids=bool(wire.return_token_ids),
        usage=wire.has_usage_chunk,
    )
    shape = ChatShape(head, has_logprobs=bool(wire.logprobs))
    return await answer(request, prepared, shape, is_stream=bool(wire.stream))


class ChatShape:
    """Words a chat's answer."""

    dialect = OPENAI

    def __init__(self, head: Head, *, has_logprobs: bool) -> None:
        self._head = head
        self._has_logprobs = has_logprobs

    def opening(self) -> Iterable[dict[str, Any]]:
        """For each choice the chunk that says who speaks; the first also carries the notes."""
        notes = self._head.notes()
        for index in range(self._head.num_choices):
            delta = {"role": "assistant", "content": "", "refusal": None}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            yield {**self._head.chunk("chat.completion.chunk", choice), **notes}
            notes = {}

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """A chunk for reasoning, for content and for calls, and one for the finish."""
        gained = self._gained([delta])
        words = list(_words(delta))
        if not words and delta.token_ids and delta.finish_reason is None:
            words = [{"content": ""}]
        for one in words:
            yield self._chunk(delta.index, one, gained)
            gained = self._gained([])
        if delta.finish_reason is not None:
            end = {**gained, **_reasoning_end(delta)}
            yield self._chunk(delta.index, {}, end, delta.finish_reason.value)

    def _chunk(
        self, index: int, delta: dict[str, Any], gained: dict[str, Any], finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, **gained, "finish_reason": finish}
        return self._head.chunk("chat.completion.chunk", choice)

    def _gained(self, deltas: list[Delta]) -> dict[str, Any]:
        """Log-probabilities and ids of deltas, as far as they were asked for."""
        tokens = [one for delta in deltas for one in delta.logprobs]
        gained: dict[str, Any] = {"logprobs": None}
        if self._has_logprobs and tokens:
            gained["logprobs"] = {"content": chat_logprobs(tokens), "refusal": None}
        if self._head.has_token_ids:
            gained["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
        return gained

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """The chunk that only counts, where it was asked for."""
        return self._head.closing("chat.completion.chunk", usage)

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """The one event of a failure."""
        return self._head.failing(refusal)

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        of_choice = by_choice(deltas, self._head.num_choices)
        choices = [self._whole_choice(index, one) for index, one in enumerate(of_choice)]
        fields = self._head.fields("chat.completion")
        return {**fields, "choices": choices, "usage": usage_fields(usage), **self._head.notes()}

    def _whole_choice(self, index: int, deltas: list[Delta]) -> dict[str, Any]:
        last = next(one for one in deltas if one.finish_reason)
        gained = self._gained(deltas)
        if self._has_logprobs and gained["logprobs"] is None:
            gained["logprobs"] = {"content": [], "refusal": None}
        return {
            "index": index,
            "message": _message(deltas),
            **gained,
            **_reasoning_end(last),
            "finish_reason": last.finish_reason and last.finish_reason.value,
        }


def _message(deltas: list[Delta]) -> dict[str, Any]:
    """What a choice said; reasoning and calls only where there are any."""
    content = "".join(delta.content for delta in deltas)
    reasoning = "".join(delta.reasoning for delta in deltas)
    calls = joined_calls(deltas)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
    }
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    return message


def _words(delta: Delta) -> Iterable[dict[str, Any]]:
    """What a delta says, in the order it was said."""
    if delta.reasoning:
        yield {"reasoning_content": delta.reasoning}
    if delta.content:
        yield {"content": delta.content}
    if delta.tool_calls:
        yield {"tool_calls": [_piece(piece) for piece in delta.tool_calls]}


def _piece(piece: ToolCallPiece) -> dict[str, Any]:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _reasoning_end(last: Delta) -> dict[str, Any]:
    """How reasoning ended, where there was any."""
    end = last.reasoning_finish
    return {} if end is None else {"reasoning_finish": end.value}
