"""Find a vocabulary's whole tokens in a text: at each place the longest that stands there.

Not here: which of them are looked for (``tokenizer``).

Always true: time grows with the text, hardly with the number of spellings; a text that is nearly a
spelling at every place takes no longer than one that is none.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Spellings:
    """Spellings to look for, none of them empty."""

    def __init__(self, spellings: Iterable[str]) -> None:
        self._sorted = sorted(spellings)
        self._most = max(map(len, self._sorted), default=0)
        firsts = "".join(sorted({spelling[0] for spelling in self._sorted}))
        self._first = re.compile(f"[{re.escape(firsts)}]") if firsts else None

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Where each begins, and which it is; they do not overlap."""
        at = 0
        while self._first is not None and (match := self._first.search(text, at)) is not None:
            at = match.start()
            found = self._longest(text[at : at + self._most])
            if found is not None:
                yield at, found
            at += len(found or " ")

    def _longest(self, part: str) -> str | None:
        """The longest that the part begins with.

        Any it begins with is a beginning, too, of whatever sorts between that one and the part.
        """
        while part:
            index = bisect_right(self._sorted, part)
            if not index:
                return None
            last = self._sorted[index - 1]
            if part.startswith(last):
                return last
            part = part[: sum(1 for _ in takewhile(_are_equal, zip(last, part, strict=False)))]
        return None


def _are_equal(pair: tuple[str, str]) -> bool:
    return pair[0] == pair[1]
