"""Text that comes in pieces, and the small readers that take it apart.

A reader is a generator: it yields None when it needs more text, and a ``Part`` when some of what it
read is certain. Not here: what the signs of a family are (``reasoning``, ``tools``).

Always true: what a reader took is taken once; what it only looked at can be given back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from insitu.types import ToolCallPiece

SPACE = " \t\r\n"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """What the text up to character ``end`` adds to one of the places where it may belong."""

    end: int
    content: str = ""
    reasoning: str = ""
    call: ToolCallPiece | None = None


Reader = Generator["Part | None", None, T]


class Source:
    """The text as far as it is known, and how far it was read.

    base             at          the reader's place
      | taken ...     | not yet taken ...  |
    ``mark``: from here everything is kept, to be read again.
    """

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_ended = False
        self._base = 0
        self._mark: int | None = None
        self._hidden: deque[tuple[int, int]] = deque()

    @property
    def position(self) -> int:
        """Characters before the reader's place, since the beginning."""
        return self._base + self.at

    @property
    def settled(self) -> int:
        """Characters that will not be read again."""
        return self.position if self._mark is None else self._mark

    @property
    def left(self) -> str:
        """What is known and not yet read."""
        return self.text[self.at :]

    def push(self, text: str, *, is_hidden: bool = False) -> None:
        """Add text; what is hidden can be a sign, and is never part of what is shown."""
        drop = self.settled - self._base
        self.text = self.text[drop:] + text
        self.at -= drop
        self._base += drop
        if is_hidden and text:
            end = self._base + len(self.text)
            self._hidden.append((end - len(text), end))

    def mark(self) -> None:
        """Keep what follows, so that ``back`` can return here."""
        self._mark = self.position

    def back(self) -> None:
        """Read again from the mark."""
        assert self._mark is not None
        self.at = self._mark - self._base
        self._mark = None

    def keep(self) -> None:
        """What was read since the mark stays read."""
        self._mark = None

    def more(self) -> Reader[bool]:
        """Wait for more text; False where none will come."""
        if self.is_ended:
            return False
        yield None
        return True

    def take(self, end: int) -> str:
        """The text up to index ``end``, without what is hidden."""
        start, self.at = self.at, end
        if not self._hidden:
            return self.text[start:end]
        shown, first, last = [], self._base + start, self._base + end
        while self._hidden and self._hidden[0][0] < last:
            low, high = self._hidden.popleft()
            shown.append(self.text[first - self._base : max(low, first) - self._base])
            first = max(first, min(high, last))
            if high > last:
                self._hidden.appendleft((last, high))
                break
        shown.append(self.text[first - self._base : end])
        return "".join(shown)

    def certain(self, signs: tuple[str, ...]) -> int:
        """Up to which index the unread text holds no beginning of a sign."""
        longest = max(map(len, signs), default=1)
        for start in range(max(self.at, len(self.text) - longest + 1), len(self.text)):
            tail = self.text[start:]
            if any(sign.startswith(tail) for sign in signs):
                return start
        return len(self.text)


def skip(source: Source, characters: str = SPACE) -> Reader[bool]:
    """Pass over some characters; whether any other follows."""
    while True:
        text = source.text
        while source.at < len(text) and text[source.at] in characters:
            source.at += 1
        if source.at < len(text):
            return True
        if not (yield from source.more()):
            return False


def follows(source: Source, sign: str) -> Reader[bool]:
    """Whether the text goes on with a sign, which is then read."""
    while True:
        if source.text.startswith(sign, source.at):
            source.at += len(sign)
            return True
        if not sign.startswith(source.left) or not (yield from source.more()):
            return False


def until(source: Source, signs: tuple[str, ...], max_chars: int) -> Reader[tuple[str, str] | None]:
    """The text up to the first of some signs, and that sign, which is read too."""
    while True:
        found = [(at, sign) for sign in signs if (at := source.text.find(sign, source.at)) >= 0]
        if found:
            at, sign = min(found)
            text = source.take(at)
            source.at += len(sign)
            return text, sign
        is_too_long = len(source.text) - source.at > max_chars
        if is_too_long or not (yield from source.more()):
            return None
