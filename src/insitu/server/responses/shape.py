"""Words a response: items whole, and the events that make them.

Always true: ``sequence_number`` counts a stream's events from 0, and the items of the last event
are those that the events before it made.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from insitu.server.blocks import BlockKind, Blocks, Change
from insitu.server.dialects import RESPONSES
from insitu.server.logprobs import chat_logprobs
from insitu.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.refusal import Refusal
    from insitu.server.blocks import Block, Step
    from insitu.types import Delta, Usage

_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.REASONING: "rs", BlockKind.CALL: "fc"}
_TEXT_EVENTS = {BlockKind.TEXT: "output_text", BlockKind.REASONING: "reasoning_text"}


class ResponseShape:
    """Words one response; ``fields`` are those that do not change while it is made."""

    dialect = RESPONSES

    def __init__(self, fields: dict[str, Any], *, has_logprobs: bool) -> None:
        self._fields = fields
        self._has_logprobs = has_logprobs
        self._blocks = Blocks()
        self._num_events = 0
        self._tail = str(fields["id"]).partition("_")[2]

    def opening(self) -> Iterable[dict[str, Any]]:
        """That there is a response, and that it is being made."""
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._response("in_progress"))

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """The events of one delta."""
        for step in self._blocks.take(delta):
            yield from self._events(step)

    def _events(self, step: Step) -> Iterable[dict[str, Any]]:
        if step.change is Change.BEGUN:
            return self._begun(step.block)
        if step.change is Change.ENDED:
            return self._ended(step.block)
        return [self._grew(step)]

    def _begun(self, block: Block) -> Iterable[dict[str, Any]]:
        item = self._item(block, is_empty=True)
        yield self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind is not BlockKind.CALL:
            part = self._part(block, is_empty=True)
            yield self._of("response.content_part.added", block, content_index=0, part=part)

    def _grew(self, step: Step) -> dict[str, Any]:
        block = step.block
        if block.kind is BlockKind.CALL:
            name = "response.function_call_arguments.delta"
            return self._of(name, block, delta=step.text)
        fields: dict[str, Any] = {"content_index": 0, "delta": step.text}
        if block.kind is BlockKind.TEXT:
            shown = step.logprobs if self._has_logprobs else ()
            fields["logprobs"] = chat_logprobs(shown)
        return self._of(f"response.{_TEXT_EVENTS[block.kind]}.delta", block, **fields)

    def _ended(self, block: Block) -> Iterable[dict[str, Any]]:
        if block.kind is BlockKind.CALL:
            name = "response.function_call_arguments.done"
            yield self._of(name, block, name=block.name, arguments=block.text)
        else:
            fields: dict[str, Any] = {"content_index": 0, "text": block.text}
            if block.kind is BlockKind.TEXT:
                fields["logprobs"] = self._logprobs(block)
            yield self._of(f"response.{_TEXT_EVENTS[block.kind]}.done", block, **fields)
            part = self._part(block)
            yield self._of("response.content_part.done", block, content_index=0, part=part)
        item = self._item(block)
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """The whole response."""
        status = self._status()
        yield self._event(f"response.{status}", response=self._response(status, usage))

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """What there is of the response, and why there is no more."""
        response = self._response("failed")
        response["error"] = {"code": refusal.code or "server_error", "message": refusal.message}
        yield self._event("response.failed", response=response)

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        self._blocks.take_all(deltas)
        return self._response(self._status(), usage)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return event

    def _of(self, kind: str, block: Block, **fields: Any) -> dict[str, Any]:
        """An event of a part of an item."""
        return self._event(kind, item_id=self._id(block), output_index=block.index, **fields)

    def _status(self) -> str:
        return "incomplete" if self._blocks.finish is FinishReason.LENGTH else "completed"

    def _response(self, status: str, usage: Usage | None = None) -> dict[str, Any]:
        is_over = usage is not None or status == "failed"
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._fields,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": reason,
            "output": [self._item(one) for one in self._blocks.all] if is_over else [],
            "usage": None if usage is None else usage_fields(usage),
        }

    def _id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._tail}_{block.index}"

    def _item(self, block: Block, *, is_empty: bool = False) -> dict[str, Any]:
        is_last = block is self._blocks.all[-1]
        status = "in_progress" if is_empty else self._status() if is_last else "completed"
        item: dict[str, Any] = {"id": self._id(block), "status": status}
        content = [] if is_empty else [self._part(block)]
        if block.kind is BlockKind.TEXT:
            return {**item, "type": "message", "role": "assistant", "content": content}
        if block.kind is BlockKind.REASONING:
            return {**item, "type": "reasoning", "summary": [], "content": content}
        call = {"call_id": block.call_id, "name": block.name}
        arguments = "" if is_empty else block.text
        return {**item, "type": "function_call", **call, "arguments": arguments}

    def _part(self, block: Block, *, is_empty: bool = False) -> dict[str, Any]:
        text = "" if is_empty else block.text
        if block.kind is BlockKind.REASONING:
            return {"type": "reasoning_text", "text": text}
        logprobs = [] if is_empty else self._logprobs(block)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _logprobs(self, block: Block) -> list[dict[str, Any]]:
        return chat_logprobs(block.logprobs) if self._has_logprobs else []


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Token counts in this protocol's words."""
    details = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0}
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
