"""Words Ollama's answers: a line for each delta, and a last one that counts.

Always true: joined lines are the whole answer; calls are shown whole, when they are whole.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from insitu.server.blocks import BlockKind, Blocks, Change
from insitu.server.dialects import OLLAMA
from insitu.server.logprobs import chat_logprobs
from insitu.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.refusal import Refusal
    from insitu.server.blocks import Block
    from insitu.server.record import Record
    from insitu.types import Delta, Prepared, Usage


def now() -> str:
    """A time as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class OllamaShape:
    """Words one answer of /api/chat, or of /api/generate, whose text is not in a message."""

    dialect = OLLAMA

    def __init__(
        self, prepared: Prepared, model: str, record: Record, *, is_chat: bool, has_logprobs: bool
    ) -> None:
        self._record = record
        self._model = model
        self._is_chat = is_chat
        self._has_logprobs = has_logprobs
        self._blocks = Blocks()
        self._notes: dict[str, Any] = {"seed": prepared.seed}
        if prepared.warnings:
            self._notes["warnings"] = list(prepared.warnings)

    def opening(self) -> Iterable[dict[str, Any]]:
        """Nothing: the first line has text."""
        return ()

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """Lines of one delta."""
        for step in self._blocks.take(delta):
            if step.change is Change.GREW and step.block.kind is not BlockKind.CALL:
                is_text = step.block.kind is BlockKind.TEXT
                said: dict[str, Any] = {"content": step.text if is_text else ""}
                if not is_text:
                    said["thinking"] = step.text
                line = self._line(said, is_done=False)
                if self._has_logprobs and step.logprobs:
                    line["logprobs"] = chat_logprobs(step.logprobs)
                yield line
            elif step.change is Change.ENDED and step.block.kind is BlockKind.CALL:
                said = {"content": "", "tool_calls": [_call(step.block)]}
                yield self._line(said, is_done=False)

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """The line that counts."""
        yield {**self._line({"content": ""}, is_done=True), **self._end(usage)}

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """The one line of a failure."""
        yield OLLAMA.failure(refusal, self._record.request_id)

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The whole answer."""
        self._blocks.take_all(deltas)
        of_kind = {
            kind: [one for one in self._blocks.all if one.kind is kind] for kind in BlockKind
        }
        said: dict[str, Any] = {"content": "".join(one.text for one in of_kind[BlockKind.TEXT])}
        if of_kind[BlockKind.REASONING]:
            said["thinking"] = "".join(one.text for one in of_kind[BlockKind.REASONING])
        if of_kind[BlockKind.CALL]:
            said["tool_calls"] = [_call(one) for one in of_kind[BlockKind.CALL]]
        answer = {**self._line(said, is_done=True), **self._end(usage)}
        if self._has_logprobs:
            tokens = [one for block in of_kind[BlockKind.TEXT] for one in block.logprobs]
            answer["logprobs"] = chat_logprobs(tokens)
        return answer

    def _line(self, said: dict[str, Any], *, is_done: bool) -> dict[str, Any]:
        head = {"model": self._model, "created_at": now()}
        if self._is_chat:
            return {**head, "message": {"role": "assistant", **said}, "done": is_done}
        content = said.pop("content")
        return {**head, "response": content, **said, "done": is_done}

    def _end(self, usage: Usage) -> dict[str, Any]:
        record = self._record
        ttft_s = record.ttft_s or 0.0
        decode_s = 0.0
        if record.last_delta_s is not None:
            decode_s = record.last_delta_s - record.started_s - ttft_s
        is_cut = self._blocks.finish is FinishReason.LENGTH
        return {
            "done_reason": "length" if is_cut else "stop",
            "total_duration": _ns(record.duration_s),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _ns(ttft_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": _ns(decode_s),
            **self._notes,
        }


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _call(block: Block) -> dict[str, Any]:
    function: dict[str, Any] = {"name": block.name, "arguments": {}}
    call = {"id": block.call_id, "function": function}
    arguments = block.arguments
    if arguments is not None:
        function["arguments"] = arguments
    else:  # shown as it is, not as an empty call
        function["partial_json"] = block.text
    return call
