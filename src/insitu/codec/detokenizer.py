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

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """Token ``index`` of the completion, with the characters that its last byte completed."""

    index: int
    token_id: int
    text: str


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
    ) -> None:
        self._tokenizer = tokenizer
        self._show_control = show_control
        # A space that is not the text's: taken from its first token, once.
        self._has_dummy_space = begins_text and tokenizer.has_dummy_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._finders = [_StopFinder(text) for text in dict.fromkeys(stop)]
        self._held: deque[_Held] = deque()
        self._num_tokens = 0
        self._num_chars = 0
        self._best: StopMatch | None = None
        self._stopped: StopMatch | None = None

    @property
    def stopped(self) -> StopMatch | None:
        """The stop string that ended the text, once it is known which."""
        return self._stopped

    def push(self, token_id: int) -> list[Released]:
        """Take the next token; give those whose text is now certain. Nothing after a stop."""
        if self._stopped:
            return []
        is_control = self._tokenizer.is_control(token_id)
        is_shown = self._show_control or not is_control
        raw = self._tokenizer.token_bytes(token_id) if is_shown else b""
        if self._has_dummy_space and raw and not is_control:
            raw = raw.removeprefix(b" ")
            self._has_dummy_space = False
        start = self._num_chars
        text = self._utf8.decode(raw)
        # A character begun and not complete will be exactly one, itself or U+FFFD.
        is_inside = bool(raw) and bool(self._utf8.getstate()[0])
        index, self._num_tokens = self._num_tokens, self._num_tokens + 1
        self._take(text, index)
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
            self._take(text, last.index)
            held = _Held(last.index, last.token_id, last.start, self._num_chars, last.text + text)
            self._held.append(held)
        return self._release(is_final=True)

    def _take(self, text: str, index: int) -> None:
        for finder in self._finders:
            for end in finder.ends(text):
                cut = self._num_chars + end - len(finder.text)
                best = self._best
                if (
                    best is None
                    or cut < best.cut
                    or (cut == best.cut and len(finder.text) > len(best.stop))
                ):
                    self._best = StopMatch(finder.text, index, cut)
        self._num_chars += len(text)

    def _release(self, *, is_final: bool) -> list[Released]:
        possible = [self._num_chars - finder.num_matched for finder in self._finders]
        best = self._best
        if best and (is_final or all(start >= best.cut for start in possible)):
            self._stopped = best
            return self._cut(best.cut)
        certain = self._num_chars if is_final or not possible else min(possible)
        if best:
            certain = min(certain, best.cut)
        released = []
        while self._held and self._held[0].end <= certain:
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


class _StopFinder:
    """Finds one stop string in text that comes in pieces, in time linear in the text.

    ``num_matched``: how many characters at the end of the text begin the stop string.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_matched = 0
        # borders[i]: the longest proper border of text[:i + 1] (Knuth, Morris, Pratt).
        self._borders = [0] * len(text)
        length = 0
        for index in range(1, len(text)):
            while length and text[index] != text[length]:
                length = self._borders[length - 1]
            length += text[index] == text[length]
            self._borders[index] = length

    def ends(self, piece: str) -> list[int]:
        """Where in the piece the stop string ends (counted after its last character)."""
        found = []
        text, borders, length = self.text, self._borders, self.num_matched
        for index, character in enumerate(piece):
            if not length and character != text[0]:
                continue
            while length and character != text[length]:
                length = borders[length - 1]
            length += character == text[length]
            if length == len(text):
                found.append(index + 1)
                length = borders[length - 1]
        self.num_matched = length
        return found
