"""Words a message: content blocks whole, and the events that make them.

Always true: joined deltas are the blocks of the whole answer, and a stream ends with
``message_stop`` or with one ``error`` event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.blocks import BlockKind, Blocks, Change
from insitu.server.dialects import ANTHROPIC
from insitu.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.refusal import Refusal
    from insitu.server.blocks import Block, Step
    from insitu.types import Delta, Prepared, Usage

_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
}
# A block's empty form and its delta, by the name of what it is filled with.
_EMPTY: dict[BlockKind, dict[str, Any]] = {
    BlockKind.TEXT: {"type": "text", "text": ""},
    BlockKind.REASONING: {"type": "thinking", "thinking": "", "signature": ""},
}
_DELTAS = {
    BlockKind.TEXT: ("text_delta", "text"),
    BlockKind.REASONING: ("thinking_delta", "thinking"),
    BlockKind.CALL: ("input_json_delta", "partial_json"),
}


class MessageShape:
    """Words one message."""

    dialect = ANTHROPIC

    def __init__(self, prepared: Prepared, model: str, http_id: str) -> None:
        self._http_id = http_id
        self._num_prompt_tokens = prepared.num_prompt_tokens
        self._blocks = Blocks()
        self._head: dict[str, Any] = {
            "id": prepared.request.request_id,
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._notes: dict[str, Any] = {"seed": prepared.seed}
        if prepared.warnings:
            self._notes["warnings"] = list(prepared.warnings)

    def opening(self) -> Iterable[dict[str, Any]]:
        """The message, still empty."""
        # What of the prompt was found computed is known with the first token.
        usage = {"input_tokens": self._num_prompt_tokens, "output_tokens": 0}
        end = {"stop_reason": None, "stop_sequence": None}
        message = {**self._head, "content": [], **end, "usage": usage, **self._notes}
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """The events of one delta."""
        return [_event(step) for step in self._blocks.take(delta)]

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """How it ended, and what it took."""
        yield {"type": "message_delta", "delta": self._end(), "usage": usage_fields(usage)}
        yield {"type": "message_stop"}

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """The one event of a failure."""
        yield ANTHROPIC.failure(refusal, self._http_id)

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        self._blocks.take_all(deltas)
        content = [_whole(block) for block in self._blocks.all]
        counted = {"usage": usage_fields(usage)}
        return {**self._head, "content": content, **self._end(), **counted, **self._notes}

    def _end(self) -> dict[str, Any]:
        finish, stop = self._blocks.finish, self._blocks.stop
        reason = "stop_sequence" if stop is not None else _REASONS[finish or FinishReason.STOP]
        return {"stop_reason": reason, "stop_sequence": stop}


def _event(step: Step) -> dict[str, Any]:
    block = step.block
    if step.change is Change.BEGUN:
        return {"type": "content_block_start", "index": block.index, "content_block": _empty(block)}
    if step.change is Change.ENDED:
        return {"type": "content_block_stop", "index": block.index}
    kind, name = _DELTAS[block.kind]
    delta = {"type": kind, name: step.text}
    return {"type": "content_block_delta", "index": block.index, "delta": delta}


def _empty(block: Block) -> dict[str, Any]:
    if block.kind is BlockKind.CALL:
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}
    return dict(_EMPTY[block.kind])


def _whole(block: Block) -> dict[str, Any]:
    whole = _empty(block)
    if block.kind is not BlockKind.CALL:
        whole[_DELTAS[block.kind][1]] = block.text
        return whole
    arguments = block.arguments
    if arguments is not None:
        whole["input"] = arguments
    else:  # shown as it is, not as an empty call
        whole["partial_json"] = block.text
    return whole


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Token counts in this protocol's words: input tokens are those not found computed."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
