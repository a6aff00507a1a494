"""SentencePiece's BPE: neighbouring pieces merge, best score first, of equal scores the leftmost.

Not here: which tokens a text may hold (``gguf_vocabulary``). The library's BPE knows an order of
merges, not of scores, and parts from this one where two merges make the same piece.

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
_CROSSING = re.compile(f"[^{SPACE}\0]{SPACE}")
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]*")
_MOST_CROSSING = 64
_LONGEST_KEPT = 64


class PieceMerger:
    """Ids of a text by merging; ``ids`` and ``scores`` of the pieces that merging may make."""

    def __init__(
        self, ids: Mapping[str, int], scores: Sequence[float], byte_ids: Mapping[int, int]
    ) -> None:
        self._ids = ids
        self._scores = scores
        self._byte_ids = byte_ids
        # Words can be merged on their own where no piece holds the end of one and another's start.
        self._crossing: list[str] = []
        if _CROSSING.search("\0".join(ids)):
            self._crossing = [piece for piece in ids if _CROSSING.search(piece)]

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
        ids, scores = self._ids, self._scores
        symbols = list(word)
        size = len(symbols)
        left_of = list(range(-1, size - 1))
        right_of = list(range(1, size + 1))
        queue: list[tuple[float, int, int, str]] = []
        for left in range(size - 1):
            piece = word[left : left + 2]
            token_id = ids.get(piece)
            if token_id is not None:
                queue.append((-scores[token_id], left, left + 1, piece))
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
        piece = symbols[left] + symbols[right]
        token_id = self._ids.get(piece)
        if token_id is not None:
            heappush(queue, (-self._scores[token_id], left, right, piece))

    def _spelled(self, symbol: str) -> list[int]:
        token_id = self._ids.get(symbol)
        if token_id is not None:
            return [token_id]
        found = [self._byte_ids.get(byte) for byte in symbol.encode()]
        if None in found:
            raise UnencodableText(symbol)
        return [token_id for token_id in found if token_id is not None]
