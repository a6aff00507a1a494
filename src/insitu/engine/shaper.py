"""The edits of one sequence's logits, kept up as it grows.

Counts and matches are brought up to date by the tokens that are new: a step costs what its tokens
touch. Not here: what an edit does to a logit (``kernels/reference_processors``).

Always true: the edits are a function of the sequence's own ids; after some were taken back, they
are what they would have been had these never come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.sampling import NO_PENALTY

if TYPE_CHECKING:
    from collections.abc import Collection
    from collections.abc import Sequence as Items

    from insitu.engine.shaping import Dry, Shaping
    from insitu.kernels.sampling import Float64, Int32

_BAN = float("-inf")
# A penalty that needs no more digits: it leaves nothing of any logit.
_MOST_PENALTY = 1e30

# token ids, counts, values: a part of EditArrays
Edits = tuple["Int32", "Int32", "Float64"]


class Shaper:
    """Of a sequence that began with so many tokens of a prompt, and ends with one of some ids."""

    def __init__(self, shaping: Shaping, num_prompt: int, stop_ids: Collection[int]) -> None:
        self._shaping = shaping
        self._num_prompt = num_prompt
        self._stop_ids = sorted(stop_ids)
        alone = [(ids[-1], _BAN) for ids in shaping.banned if len(ids) == 1]
        self._biases = _values([*shaping.logit_bias, *alone])
        self._phrases = [(ids[:-1], ids[-1]) for ids in shaping.banned if len(ids) > 1]
        self._occurrences = _occurrences_for(shaping, num_prompt)
        self._repeats = Repeats(shaping.dry) if shaping.dry is not None else None

    def edits(self, token_ids: list[int], *, may_end: bool = False) -> list[Edits]:
        """In order, after these ids; ``may_end``: ``min_tokens`` does not hold, as nothing else may
        follow.
        """
        parts = [self._biases]
        if self._occurrences is not None:
            parts.append(self._occurrences.after(token_ids))
        values = []
        if self._repeats is not None:
            values += self._repeats.after(token_ids)
        for before, last in self._phrases:
            if tuple(token_ids[-len(before) :]) == before:
                values.append((last, _BAN))
        if len(token_ids) - self._num_prompt < self._shaping.min_tokens and not may_end:
            values += [(token_id, _BAN) for token_id in self._stop_ids]
        return [*parts, _values(values)] if values else parts


def _values(values: Items[tuple[int, float]]) -> Edits:
    """Edits that only add."""
    return (
        np.array([token_id for token_id, _ in values], np.int32),
        np.full(len(values), NO_PENALTY, np.int32),
        np.array([value for _, value in values], np.float64),
    )


def _occurrences_for(shaping: Shaping, num_prompt: int) -> Occurrences | None:
    if not shaping.has_penalties:
        return None
    if shaping.last_n:
        return RecentOccurrences(shaping.last_n)
    # Without a repetition penalty nothing of the prompt loses.
    return AllOccurrences(num_prompt, has_prompt=shaping.repetition != 1)


class AllOccurrences:
    """Every id of prompt and output, and how often it is in the output."""

    def __init__(self, num_prompt: int, *, has_prompt: bool) -> None:
        self._num_prompt, self._has_prompt = num_prompt, has_prompt
        self._reset()

    def _reset(self) -> None:
        self._num_seen = 0 if self._has_prompt else self._num_prompt
        self._row_of: dict[int, int] = {}
        self._ids: Int32 = np.zeros(64, np.int32)
        self._counts: Int32 = np.zeros(64, np.int32)

    def after(self, token_ids: list[int]) -> Edits:
        """One edit an id."""
        if len(token_ids) < self._num_seen:
            self._reset()
        for position in range(self._num_seen, len(token_ids)):
            row = self._row(token_ids[position])
            self._counts[row] += position >= self._num_prompt
        self._num_seen = len(token_ids)
        num = len(self._row_of)
        return self._ids[:num], self._counts[:num], np.zeros(num)

    def _row(self, token_id: int) -> int:
        row = self._row_of.setdefault(token_id, len(self._row_of))
        if row == len(self._ids):
            more = np.zeros(len(self._ids), np.int32)
            self._ids = np.concatenate([self._ids, more])
            self._counts = np.concatenate([self._counts, more])
        self._ids[row] = token_id
        return row


class RecentOccurrences:
    """The ids of the last tokens, whosever they are, and how often each is among them."""

    def __init__(self, last_n: int) -> None:
        self._last_n = last_n

    def after(self, token_ids: list[int]) -> Edits:
        """One edit an id, the first that occurs first."""
        counts: dict[int, int] = {}
        for token_id in token_ids[-self._last_n :]:
            counts[token_id] = counts.get(token_id, 0) + 1
        ids = np.array(list(counts), np.int32)
        return ids, np.array(list(counts.values()), np.int32), np.zeros(len(ids))


Occurrences = AllOccurrences | RecentOccurrences


class Repeats:
    """Where the last tokens occurred before, and how many of them."""

    def __init__(self, dry: Dry) -> None:
        self._dry = dry
        self._num_seen = 0
        self._positions: dict[int, list[int]] = {}  # of each id
        # By position: how many tokens up to it equal the last ones.
        self._lengths: dict[int, int] = {}

    def after(self, token_ids: list[int]) -> list[tuple[int, float]]:
        """What the ids that would go on repeating lose."""
        if len(token_ids) != self._num_seen + 1:
            self._read(token_ids[:-1])
        self._take(token_ids[-1])
        dry = self._dry
        longest: dict[int, int] = {}
        first = max(0, len(token_ids) - dry.last_n) if dry.last_n else 0
        for position, length in self._lengths.items():
            within = min(length, position - first + 1)
            if within >= dry.allowed_length:
                after = token_ids[position + 1]
                longest[after] = max(within, longest.get(after, 0))
        return [(one, -penalty(dry, length)) for one, length in sorted(longest.items())]

    def _take(self, token_id: int) -> None:
        at = self._positions.setdefault(token_id, [])
        is_breaker = token_id in self._dry.breakers
        lengths = self._lengths
        self._lengths = {} if is_breaker else {one: lengths.get(one - 1, 0) + 1 for one in at}
        at.append(self._num_seen)
        self._num_seen += 1

    def _read(self, token_ids: list[int]) -> None:
        """Begin anew after these ids."""
        self._positions = {}
        for position, token_id in enumerate(token_ids):
            self._positions.setdefault(token_id, []).append(position)
        self._num_seen = len(token_ids)
        common = _common_suffixes(token_ids, self._dry.breakers)
        self._lengths = {position: length for position, length in enumerate(common) if length}


def penalty(dry: Dry, length: int) -> float:
    """What a token loses that would make a repetition of ``length`` tokens longer."""
    # By squaring: no library's pow lies on the way to a token.
    factor, square, exponent = 1.0, dry.base, length - dry.allowed_length
    while exponent and factor < _MOST_PENALTY:
        if exponent & 1:
            factor *= square
        square = min(square * square, _MOST_PENALTY)
        exponent >>= 1
    return min(dry.multiplier * factor, _MOST_PENALTY)


def _common_suffixes(token_ids: Items[int], breakers: Collection[int]) -> list[int]:
    """How many tokens up to each position, itself included, equal the last ones of all.

    The last position counts for nothing; nothing equals a breaker.
    """
    # From the back this is how long a prefix begins again at each position, found in one pass.
    back = [-1 - at if one in breakers else one for at, one in enumerate(reversed(token_ids))]
    num = len(back)
    lengths = [0] * num
    first = end = 0  # the stretch that reaches furthest of those found to equal a prefix
    for at in range(1, num):
        length = min(end - at, lengths[at - first]) if at < end else 0
        while at + length < num and back[length] == back[at + length]:
            length += 1
        lengths[at] = length
        if at + length > end:
            first, end = at, at + length
    return lengths[::-1]
