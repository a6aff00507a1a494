"""Every token's spelling by id, in one block of bytes: a list of strings takes six times as much.

Not here: what a spelling stands for (``vocabulary``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, repeat
from typing import overload

# Halves of a surrogate pair, which JSON can spell, come back as they were.
_ERRORS = "surrogatepass"
_SHORT = 1 << 32


class Pieces(Sequence[str]):
    """Spellings; one is made into a string when it is asked for."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._raw = "".join(pieces).encode(errors=_ERRORS)
        lengths = map(len, map(str.encode, pieces, repeat("utf-8"), repeat(_ERRORS)))
        kind = "I" if len(self._raw) < _SHORT else "Q"
        self._ends: array[int] = array(kind, accumulate(lengths))

    def __len__(self) -> int:
        """How many tokens."""
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """A token's spelling."""
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        start = self._ends[at - 1] if at else 0
        return self._raw[start : self._ends[at]].decode(errors=_ERRORS)
