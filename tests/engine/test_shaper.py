"""The edits of a growing sequence against what each means, worked out from its ids alone."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from insitu.engine.shaper import Repeats, Shaper, penalty
from insitu.engine.shaping import Dry, Shaping
from insitu.kernels.reference_processors import occurrences, repetition_penalty, repetitions
from insitu.kernels.sampling import NO_PENALTY

BAN = float("-inf")


def edits_of(shaper: Shaper, token_ids: list[int], **how: bool) -> list[tuple[int, int, float]]:
    """Id, count and value of each edit, in order."""
    return [
        one
        for ids, counts, values in shaper.edits(token_ids, **how)
        for one in zip(ids.tolist(), counts.tolist(), values.tolist(), strict=True)
    ]


def shaper_of(shaping: Shaping, prompt: tuple[int, ...], stop_ids: tuple[int, ...] = ()) -> Shaper:
    return Shaper(shaping, len(prompt), stop_ids)


def story(seed: int, num_tokens: int, num_ids: int) -> list[int]:
    """Few ids, and stretches said again."""
    rng = random.Random(seed)  # noqa: S311
    ids: list[int] = []
    while len(ids) < num_tokens:
        if len(ids) > 10 and rng.random() < 0.2:
            start = rng.randrange(len(ids) - 5)
            ids += ids[start : start + rng.randrange(1, 9)]
        else:
            ids.append(rng.randrange(num_ids))
    return ids[:num_tokens]


@pytest.mark.parametrize("last_n", [0, 7, 64])
@pytest.mark.parametrize("repetition", [1.0, 1.3])
def test_penalties_are_for_what_occurred(last_n: int, repetition: float) -> None:
    ids = story(1, 150, 90)
    num_prompt = 40
    shaping = Shaping(repetition=repetition, presence=0.5, last_n=last_n)
    shaper = shaper_of(shaping, tuple(ids[:num_prompt]))
    # One after another, several at once, and taken back.
    for length in [40, 41, 42, 50, 51, 120, 60, 61, 45, 150]:
        wanted = occurrences(ids[:length], num_prompt, last_n=last_n)
        if repetition == 1 and not last_n:
            wanted = {one: count for one, count in wanted.items() if count}
        got = edits_of(shaper, ids[:length])
        assert {token_id: count for token_id, count, _ in got} == wanted
        assert len(got) == len(wanted)


@pytest.mark.parametrize("last_n", [0, 5, 40])
@pytest.mark.parametrize("breakers", [frozenset(), frozenset({0, 3})])
@pytest.mark.parametrize("num_ids", [2, 5, 12])
def test_repetitions_are_found(num_ids: int, breakers: frozenset[int], last_n: int) -> None:
    dry = Dry(0.8, allowed_length=2, last_n=last_n, breakers=breakers)
    ids = story(num_ids, 120, num_ids)
    repeats = Repeats(dry)
    for length in [1, 2, 3, *range(30, 90), 40, 41, 120, 119]:
        lengths = repetitions(ids[:length], breakers, last_n=last_n)
        wanted = {
            one: -repetition_penalty(length, multiplier=0.8, base=1.75, allowed_length=2)
            for one, length in lengths.items()
            if length >= 2
        }
        got = dict(repeats.after(ids[:length]))
        assert got == {one: pytest.approx(value) for one, value in wanted.items()}


def test_a_repetition_costs_more_the_longer_it_is_and_never_too_much() -> None:
    dry = Dry(multiplier=0.5, base=2.0, allowed_length=3)
    assert [penalty(dry, length) for length in (3, 4, 5, 8)] == [0.5, 1.0, 2.0, 16.0]
    assert penalty(dry, 10**6) == 1e30
    assert penalty(replace(dry, base=1.0), 10**6) == 0.5


def test_words_are_banned_where_they_would_be_completed() -> None:
    shaper = shaper_of(Shaping(banned=((5,), (1, 2), (1, 2, 3), (9, 1, 2))), (1, 9))
    bans = {tuple(ids): [one for one, *_ in edits_of(shaper, ids)] for ids in (
        [1, 9], [1, 9, 1], [1, 9, 1, 2], [9, 9, 9, 1, 2], [2, 1, 2, 2],
    )}  # fmt: skip
    assert list(bans.values()) == [[5], [5, 2, 2], [5, 3], [5, 3], [5]]
    assert all(value == BAN for _, _, value in edits_of(shaper, [1, 9, 1]))


def test_end_ids_wait_for_the_least_number_of_tokens_unless_nothing_else_may_come() -> None:
    shaper = shaper_of(Shaping(min_tokens=2, logit_bias=((4, 1.5),)), (1, 2), stop_ids=(8, 7))
    assert edits_of(shaper, [1, 2, 3]) == [
        (4, NO_PENALTY, 1.5), (7, NO_PENALTY, BAN), (8, NO_PENALTY, BAN)
    ]  # fmt: skip
    assert edits_of(shaper, [1, 2, 3, 3]) == [(4, NO_PENALTY, 1.5)]
    assert edits_of(shaper, [1, 2], may_end=True) == [(4, NO_PENALTY, 1.5)]
