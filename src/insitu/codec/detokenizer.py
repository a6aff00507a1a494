"""Ids to text as they come: whole characters only, nothing shown that a stop string may yet cut.

Not here: end ids and stop ids (the engine's), reasoning and tool calls.

Always true: joined texts of what was released equal the text of all ids, cut at the earliest stop
string (of two that begin together the longest), however the text falls into tokens. A token is
released together with its text, never before, and in order.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from insitu.codec.stops import StopScan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.types import ToolCallPiece


class TokenSpelling(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """A token's true bytes."""
        ...

    def is_control(self, token_id: int) -> bool:
        """Whether it is the model's own sign rather than text."""
        ...

    @property
    def has_dummy_space(self) -> bool:
        """Whether its encoder puts a space before a text."""
        ...


@dataclass(frozen=True, slots=True)
class Released:
    """Token ``index`` of the completion, with the characters that its last byte completed.

    ``text`` is content; reasoning and calls are given by ``AnswerText`` only.
    """

    index: int
    token_id: int
    text: str
    reasoning: str = ""
    calls: tuple[ToolCallPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that was completed: by which token, and at which character the text is cut."""

    stop: str
    token_index: int
    cut: int


@dataclass(frozen=True, slots=True)
class _Held:
    """A token not yet released: its first character, the one after its last, its text."""

    index: int
    token_id: int
    start: int
    end: int
    text: str


class Detokenizer:
    """The text of one completion.

    characters   a l p h a _ b e t a
    tokens       [alpha_     ][be ][ta]     stop: "beta!"
    released     [alpha_     ]               "beta" may become the stop string

    ``begins_text``: the ids are a text of their own, not the rest of one that a prompt began.
    """

    def __init__(
        self,
        tokenizer: TokenSpelling,
        stop: Sequence[str] = (),
        *,
        show_control: bool = False,
        begins_text: bool = True,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._show_control = show_control
        self._shown_ids = shown_ids
        # A space that is not the text's: taken from its first token, once.
        self._has_dummy_space = begins_text and tokenizer.has_dummy_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._scan = StopScan(stop)
        self._held: deque[_Held] = deque()
        self._num_tokens = 0
        self._num_chars = 0
        self._stopped: StopMatch | None = None

    # As for ``AnswerText``: here all is content.
    num_complete_calls = 0
    num_reasoning_tokens = 0
    has_reasoned = False

    @property
    def stopped(self) -> StopMatch | None:
        """The stop string that ended the text, once it is known which."""
        return self._stopped

    def push(self, token_id: int) -> list[Released]:
        """Take the next token; give those whose text is now certain. Nothing after a stop."""
        if self._stopped:
            return []
        is_control = self._tokenizer.is_control(token_id)
        is_shown = self._show_control or token_id in self._shown_ids or not is_control
        raw = self._tokenizer.token_bytes(token_id) if is_shown else b""
        if self._has_dummy_space and raw and not is_control:
            raw = raw.removeprefix(b" ")
            self._has_dummy_space = False
        start = self._num_chars
        text = self._utf8.decode(raw)
        # A character begun and not complete will be exactly one, itself or U+FFFD.
        is_inside = bool(raw) and bool(self._utf8.getstate()[0])
        index, self._num_tokens = self._num_tokens, self._num_tokens + 1
        self._take(text)
        end = self._num_chars + is_inside
        self._held.append(_Held(index, token_id, start, end, text))
        return self._release(is_final=False)

    def finish(self) -> list[Released]:
        """No token follows: give what was held back. An unfinished character is one U+FFFD."""
        if self._stopped:
            return []
        text = self._utf8.decode(b"", final=True)
        if text and self._held:
            last = self._held.pop()
            self._take(text)
            held = _Held(last.index, last.token_id, last.start, self._num_chars, last.text + text)
            self._held.append(held)
        return self._release(is_final=True)

    def _take(self, text: str) -> None:
        self._scan.push(text)
        self._num_chars += len(text)

    def _release(self, *, is_final: bool) -> list[Released]:
        if is_final:
            self._scan.finish()
        found = self._scan.found
        if found is not None:
            index = next(held.index for held in self._held if held.end >= found.end)
            self._stopped = StopMatch(found.stop, index, found.start)
            return self._cut(found.start)
        released = []
        while self._held and self._held[0].end <= self._scan.num_certain:
            held = self._held.popleft()
            released.append(Released(held.index, held.token_id, held.text))
        return released

    def _cut(self, cut: int) -> list[Released]:
        """Tokens that begin before the cut, their text up to it; the others are never shown."""
        released = []
        for held in self._held:
            if held.start >= cut:
                break
            text = held.text[: cut - held.start]
            released.append(Released(held.index, held.token_id, text))
        self._held.clear()
        return released
