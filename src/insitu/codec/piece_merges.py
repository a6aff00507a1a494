"""Merges in an order, as tokenizer.json lists them, and scores of pieces, as GGUF files have them.

SentencePiece merges whatever two neighbours make a piece, the best score first, of equals the
leftmost. As a list, merges are all the ways to cut a piece in two pieces, by the score of what they
make, the best first; of equals the longest left part first, then the longest right part: the order
that transformers' converter writes. A list gives scores back where it holds every such way, and
the merges of a piece stand together, or with those of pieces that have the same score.

Not here: merging (``piece_merger``), or which tokens are pieces (``twin_folder_parts``).
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from insitu.codec.piece_merger import PieceMerger, RankedMerger
from insitu.weights.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Merge = tuple[str, str]
_LONG = 64
_MOST_CHARS = 100_000


class NoMergesFault(Exception):
    """Scores or merges of this vocabulary have no counterpart: the reason."""


def merges_of(ids: Mapping[str, int], scores: Sequence[float]) -> list[Merge]:
    """The merges that scores by id give."""

    def key(merge: Merge) -> tuple[float, int, int]:
        left, right = merge
        return -scores[ids[left + right]], -len(left), -len(right)

    found = sorted(_ways(ids), key=key)
    _require_alike(ids, scores, found)
    return found


def _require_alike(ids: Mapping[str, int], scores: Sequence[float], merges: list[Merge]) -> None:
    """Where two merges of one score meet, the left one goes first by score; texts in which a list
    has the other one first must come out the same."""
    texts: list[str] = []
    left_over = _MOST_CHARS
    for text in _meetings(ids, scores, merges):
        left_over -= len(text)
        if left_over < 0:
            break
        texts.append(text)
    if not texts:
        return
    by_score = PieceMerger(ids, scores, {})
    ranks = {f"{left} {right}": rank for rank, (left, right) in enumerate(merges)}
    by_rank = RankedMerger(ids, ranks, {})
    for text in (*texts, *map("".join, zip(texts, texts[1:], texts[::-1], strict=False))):
        if by_score.encode(text) != by_rank.encode(text):
            message = f"{shown(text)} comes out otherwise by a list: pieces of one score meet there"
            raise NoMergesFault(message)


def _meetings(
    ids: Mapping[str, int], scores: Sequence[float], merges: list[Merge]
) -> Iterator[str]:
    """Texts of three parts, of which the list merges the right two first."""

    def score(merge: Merge) -> float:
        return scores[ids["".join(merge)]]

    for _, group in groupby(merges, key=score):
        before: dict[str, list[str]] = {}  # right parts by left part, of merges that come before
        for left, right in group:
            for other in before.get(right, ()):
                yield left + right + other
            before.setdefault(left, []).append(right)


def scores_of(ids: Mapping[str, int], merges: Iterable[Merge]) -> dict[str, float]:
    """A score for each piece; those that no merge makes are worse than any."""
    listed = list(merges)
    _require_all(ids, listed)
    made = [left + right for left, right in listed]
    scores: dict[str, float] = {}
    for group in _groups(made):
        pieces = {made[rank] for rank in group}
        if len(pieces) > 1:
            _require_order(listed[group.start : group.stop])
        scores.update(dict.fromkeys(pieces, float(-1 - len(scores))))
    others = (piece for piece in ids if piece not in scores)
    return scores | {piece: float(-1 - rank) for rank, piece in enumerate(others, len(scores))}


def _groups(made: list[str]) -> Iterator[range]:
    """Ranks of merges that stand together: of one piece, or of several that are mixed."""
    last = {piece: rank for rank, piece in enumerate(made)}
    start = end = 0
    for rank, piece in enumerate(made):
        end = max(end, last[piece])
        if rank == end:
            yield range(start, rank + 1)
            start = rank + 1


def _ways(ids: Mapping[str, int]) -> Iterator[Merge]:
    """Every way to cut a piece in two."""
    sizes = {1, *map(len, ids)}
    for piece in ids:
        size = len(piece)
        for cut in range(1, size):
            if size > _LONG and not (cut in sizes and size - cut in sizes):
                continue  # no piece is so long: a long one is not copied once a letter
            left, right = piece[:cut], piece[cut:]
            has_left, has_right = left in ids, right in ids
            if has_left and has_right:
                yield left, right
            elif (has_left or cut == 1) and (has_right or cut == size - 1):
                character = right if has_left else left
                message = f"{shown(piece)} is a piece, and its {shown(character)} alone is none"
                raise NoMergesFault(message)


def _require_all(ids: Mapping[str, int], listed: list[Merge]) -> None:
    """Scores merge whatever makes a piece; so must the list, each way once."""
    told = Counter(listed)
    for merge in _ways(ids):
        if told.pop(merge, 0) != 1:
            message = f"{shown(' '.join(merge))} is not there once, as merging by scores would be"
            raise NoMergesFault(message)
    if told:
        raise NoMergesFault(f"{shown(' '.join(next(iter(told))))} makes no piece")


def _require_order(mixed: list[Merge]) -> None:
    """Mixed, as where scores are the same, merges are in the order that lengths give."""
    for before, after in pairwise(mixed):
        if tuple(map(len, before)) < tuple(map(len, after)):
            message = f"{shown(' '.join(after))} comes among those of another piece"
            raise NoMergesFault(message)
