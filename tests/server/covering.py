"""Rows of switches in which every three of them take every values that may stand together.

Not here: what a switch means. Always true: the same names and rules give the same rows.
"""

from __future__ import annotations

import random
from itertools import combinations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

NUM_TRIES = 40  # rows drawn, of which the one that shows most is kept
Shown = frozenset[tuple[str, bool]]


def covering_rows(
    names: Sequence[str], excluded: Sequence[Collection[str]], strength: int = 3
) -> list[frozenset[str]]:
    """Sets of names that are on; those of one ``excluded`` set are never on together."""
    missing = {
        shown
        for some in combinations(names, strength)
        for values in product((False, True), repeat=strength)
        if _is_allowed({name for name, is_on in zip(some, values, strict=True) if is_on}, excluded)
        for shown in [frozenset(zip(some, values, strict=True))]
    }
    rng = random.Random(0)  # noqa: S311
    rows: list[frozenset[str]] = []
    while missing:
        first = min(missing, key=sorted)
        drawn = [_drawn(names, excluded, first, rng) for _ in range(NUM_TRIES)]
        best = max(drawn, key=lambda row: len(missing & _shown(names, row, strength)))
        missing -= _shown(names, best, strength)
        rows.append(best)
    return rows


def _is_allowed(on: set[str], excluded: Sequence[Collection[str]]) -> bool:
    return not any(on.issuperset(some) for some in excluded)


def _drawn(
    names: Sequence[str], excluded: Sequence[Collection[str]], first: Shown, rng: random.Random
) -> frozenset[str]:
    """A row that holds ``first``; all other names in a drawn order, on as often as off."""
    fixed = dict(first)
    on = {name for name, is_on in first if is_on}
    for name in rng.sample(list(names), len(names)):
        if name not in fixed and rng.random() < 0.5 and _is_allowed({*on, name}, excluded):
            on.add(name)
    return frozenset(on)


def _shown(names: Sequence[str], row: frozenset[str], strength: int) -> set[Shown]:
    values = [(name, name in row) for name in names]
    return {frozenset(some) for some in combinations(values, strength)}
