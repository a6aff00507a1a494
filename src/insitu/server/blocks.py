"""An answer as blocks (reasoning, text, tool calls), each begun, filled and ended in order.

What the protocols with typed streams share: they word the same steps differently, and a whole
answer is made of the same blocks as the streamed one.

Not here: finding reasoning or calls in text (the Generator does). Always true: one block is open at
a time, its index counts from 0, and every block that was begun is ended.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from insitu.types import Delta, FinishReason, TokenLogprob, ToolCallPiece


class BlockKind(StrEnum):
    """What a block is made of."""

    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class Block:
    """One block; a call's text is its arguments."""

    kind: BlockKind
    index: int
    call_id: str = ""
    name: str = ""
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """A call's arguments; None where they were cut short or are not as the tool wants them."""
        try:
            value = json.loads(self.text or "{}")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


class Change(StrEnum):
    """What happened to a block."""

    BEGUN = "begun"
    GREW = "grew"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a block, with what it gained."""

    change: Change
    block: Block
    text: str = ""
    logprobs: Sequence[TokenLogprob] = ()


class Blocks:
    """Takes the deltas of one choice; ``all``: its blocks; ``finish`` and ``stop``: its end."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.finish: FinishReason | None = None
        self.stop: str | None = None
        self._open: Block | None = None

    def take(self, delta: Delta) -> Iterator[Step]:
        """The steps of one delta; at its end a choice has at least one block."""
        if delta.reasoning:
            yield from self._grow(BlockKind.REASONING, delta.reasoning, ())
        has_text = delta.content or (self._open and self._open.kind is BlockKind.TEXT)
        if has_text and (delta.content or delta.logprobs):
            yield from self._grow(BlockKind.TEXT, delta.content, delta.logprobs)
        for piece in delta.tool_calls:
            yield from self._grow_call(piece)
        if delta.finish_reason is not None:
            self.finish, self.stop = delta.finish_reason, delta.stop
            if not self.all:
                yield from self._grow(BlockKind.TEXT, "", delta.logprobs)
            yield from self._end()

    def take_all(self, deltas: Iterable[Delta]) -> None:
        """Take in a whole answer."""
        for delta in deltas:
            for _ in self.take(delta):
                pass

    def _grow(self, kind: BlockKind, text: str, logprobs: Sequence[TokenLogprob]) -> Iterator[Step]:
        block = self._open
        if block is None or block.kind is not kind:
            yield from self._begin(Block(kind, len(self.all)))
            block = self.all[-1]
        block.text += text
        block.logprobs.extend(logprobs)
        if text or logprobs:
            yield Step(Change.GREW, block, text, logprobs)

    def _grow_call(self, piece: ToolCallPiece) -> Iterator[Step]:
        if piece.id is not None:
            block = Block(BlockKind.CALL, len(self.all), piece.id, piece.name or "")
            yield from self._begin(block)
        block = self.all[-1]
        assert block.kind is BlockKind.CALL
        block.text += piece.arguments
        if piece.arguments:
            yield Step(Change.GREW, block, piece.arguments)

    def _begin(self, block: Block) -> Iterator[Step]:
        yield from self._end()
        self.all.append(block)
        self._open = block
        yield Step(Change.BEGUN, block)

    def _end(self) -> Iterator[Step]:
        if self._open is not None:
            yield Step(Change.ENDED, self._open)
            self._open = None
