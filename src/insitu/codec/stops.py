"""Stop strings in text that comes in pieces.

Not here: tokens (``detokenizer``, ``answer_text``). Always true: the earliest match wins, of two
that begin together the longest, however the text was cut; time is linear in the text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StopFound:
    """A stop string that was completed, as characters [start, end) of the text."""

    stop: str
    start: int
    end: int


class StopScan:
    """Looks for several stop strings at once.

    ``num_certain``: how many characters no stop string can cut any more. ``found`` is given once it
    is known which stop string it is.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._finders = [_StopFinder(text) for text in dict.fromkeys(stop)]
        self.num_chars = 0
        self._best: StopFound | None = None
        self.num_certain = 0
        self.found: StopFound | None = None

    def push(self, text: str) -> None:
        """Take in what follows."""
        if self._finders and text:
            self._look(text)
        self.num_chars += len(text)
        self._settle([self.num_chars - finder.num_matched for finder in self._finders])

    def finish(self) -> None:
        """Nothing follows."""
        self._settle([])

    def _look(self, text: str) -> None:
        for finder in self._finders:
            for place in finder.ends(text):
                end, best = self.num_chars + place, self._best
                start = end - len(finder.text)
                if (
                    best is None
                    or start < best.start
                    or (start == best.start and len(finder.text) > len(best.stop))
                ):
                    self._best = StopFound(finder.text, start, end)

    def _settle(self, possible: list[int]) -> None:
        """``possible``: where stop strings that are not complete yet would begin."""
        best = self._best
        self.num_certain = min((*possible, self.num_chars))
        if best is not None:
            self.num_certain = min(self.num_certain, best.start)
            if all(start >= best.start for start in possible):
                self.found = best


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
