"""BPE over words that are not cut first: neighbours merge, the best first, of equals the leftmost.

Not here: which tokens a text may hold (``gguf_vocabulary``). The library's BPE knows an order of
merges, not of scores, and parts from SentencePiece's where two merges make the same piece.

Always true: time grows as n log n in a word's length. A character without a piece becomes its UTF-8
bytes' tokens, or ``UnencodableText`` is raised.
"""

from __future__ import annotations

import re
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from insitu.codec.vocabulary import UnencodableText

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPACE = "\u2581"
# What a merge may cross: a word's mark after something else, in the vocabulary's pieces.
_CROSSING = re.compile(f"[^{SPACE}]{SPACE}")
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]*")
_MOST_CROSSING = 64
_LONGEST_KEPT = 64


class PieceMerger:
    """SentencePiece's: a merge is as good as the score of the piece it makes."""

    def __init__(
        self, ids: Mapping[str, int], scores: Sequence[float], byte_ids: Mapping[int, int]
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        # Words can be merged on their own where no piece holds the end of one and another's start.
        marked = [piece for piece in ids if SPACE in piece]
        self._crossing = [piece for piece in marked if _CROSSING.search(piece)]

    def encode(self, text: str) -> list[int]:
        """Ids of a text, its spaces written as the word mark."""
        found: list[int] = []
        known: dict[str, list[int]] = {}
        for word in self._words(text):
            ids = known.get(word)
            if ids is None:
                ids = self._merged(word)
                if len(word) <= _LONGEST_KEPT:
                    known[word] = ids
            found += ids
        return found

    def _words(self, text: str) -> list[str]:
        crossing = self._crossing
        if len(crossing) > _MOST_CROSSING or any(piece in text for piece in crossing):
            return [text]
        return _WORDS.findall(text)

    def _merged(self, word: str) -> list[int]:
        """
        symbols   t  h  e  r  e         the merge (3, "re") begins at 3 and covers 3 and 4;
        merged    t  h  e  re ·         it is stale once either has changed
        """
        symbols = list(word)
        size = len(symbols)
        left_of = list(range(-1, size - 1))
        right_of = list(range(1, size + 1))
        queue: list[tuple[float, int, int, str]] = []
        for left in range(size - 1):
            rank = self._rank(word[left], word[left + 1])
            if rank is not None:
                queue.append((rank, left, left + 1, word[left : left + 2]))
        heapify(queue)
        while queue:
            _, left, right, piece = heappop(queue)
            if len(symbols[left]) + len(symbols[right]) != len(piece) or not symbols[right]:
                continue
            if not symbols[left]:
                continue
            symbols[left], symbols[right] = piece, ""
            after = right_of[left] = right_of[right]
            if after < size:
                left_of[after] = left
                self._propose(symbols, left, after, queue)
            if left_of[left] >= 0:
                self._propose(symbols, left_of[left], left, queue)
        return [token_id for symbol in symbols if symbol for token_id in self._spelled(symbol)]

    def _propose(
        self, symbols: list[str], left: int, right: int, queue: list[tuple[float, int, int, str]]
    ) -> None:
        rank = self._rank(symbols[left], symbols[right])
        if rank is not None:
            heappush(queue, (rank, left, right, symbols[left] + symbols[right]))

    def _rank(self, left: str, right: str) -> float | None:
        """The lower, the earlier these two merge."""
        token_id = self._ids.get(left + right)
        return None if token_id is None else -self._scores[token_id]

    def _spelled(self, symbol: str) -> list[int]:
        token_id = self._ids.get(symbol)
        if token_id is not None:
            return [token_id]
        found = [self._byte_ids.get(byte) for byte in symbol.encode()]
        if None in found:
            raise UnencodableText(symbol)
        return [token_id for token_id in found if token_id is not None]


class RankedMerger(PieceMerger):
    """A merge is as good as its place in the file; ``ranks``: by both parts, a space between."""

    def __init__(
        self, ids: Mapping[str, int], ranks: Mapping[str, int], byte_ids: Mapping[int, int]
    ) -> None:
        super().__init__(ids, (), byte_ids)
        self._ranks = ranks

    def _rank(self, left: str, right: str) -> float | None:
        return self._ranks.get(f"{left} {right}")
