"""The definition of sampling against known values and probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from insitu.kernels.reference_sampling import (
    Draw,
    choose,
    kept_ids,
    log_probabilities,
    philox_words,
    uniform,
)
from insitu.sampling_params import Order

LOGITS = np.log(np.array([0.05, 0.4, 0.15, 0.3, 0.1])).astype(np.float32)


def test_philox_gives_the_published_words() -> None:
    # Random123's known answer: counter and key zero.
    words = philox_words(np.arange(4), Draw(seed=0))
    assert [hex(word) for word in words] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


@pytest.mark.parametrize(
    ("draw", "kept"),
    [
        (Draw(), [1, 3, 2, 4, 0]),
        (Draw(top_k=2), [1, 3]),
        (Draw(top_p=0.5), [1, 3]),
        (Draw(top_p=1e-9), [1]),
        (Draw(min_p=0.26), [1, 3, 2]),
        (Draw(min_p=0.26, top_p=0.8), [1, 3]),  # mass of what min_p left
        (Draw(top_k=3, top_p=0.83), [1, 3, 2]),
        (Draw(temperature=2, min_p=0.45), [1, 3, 2, 4]),  # of square roots of the shares
        (Draw(temperature=2, min_p=0.45, order=Order.LLAMA_CPP), [1, 3]),
        (Draw(top_p=0.55, min_p=0.74), [1]),  # min_p leaves 0.4 and 0.3, of which 0.4 is 0.57
        (Draw(top_p=0.55, min_p=0.74, order=Order.HUGGINGFACE), [1, 3]),
        (Draw(typical_p=0.2), [3]),  # entropy 1.39, surprises 0.92 1.2 1.9 2.3 3
        (Draw(typical_p=0.4), [3, 1]),
        (Draw(typical_p=0.75), [1, 3, 2]),
        (Draw(typical_p=0.75, top_k=2), [1, 3]),
        (Draw(typical_p=0.2, top_p=0.9, order=Order.LLAMA_CPP), [3]),
        (Draw(top_n_sigma=0.5), [1, 3]),  # sigma 0.72
        (Draw(top_n_sigma=1.5), [1, 3, 2]),
        (Draw(top_n_sigma=1.5, temperature=9.0), [1, 3, 2]),
        (Draw(xtc_probability=1, xtc_threshold=0.2), [3, 2, 4, 0]),
        (Draw(xtc_probability=1, xtc_threshold=0.35), [1, 3, 2, 4, 0]),  # one alone stays
        (Draw(xtc_probability=1, xtc_threshold=0.5), [1, 3, 2, 4, 0]),
        (Draw(xtc_probability=1, xtc_threshold=0.2, top_k=2), [3]),
        (Draw(xtc_probability=0, xtc_threshold=0.2), [1, 3, 2, 4, 0]),
        (Draw(temperature=0, top_k=3), [1]),
    ],
)
def test_truncation_keeps(draw: Draw, kept: list[int]) -> None:
    assert sorted(kept_ids(LOGITS, draw).tolist()) == sorted(kept)


def test_ties_go_to_the_lowest_id() -> None:
    flat = np.zeros(6, np.float32)
    assert choose(flat, Draw(temperature=0)) == 0
    assert kept_ids(flat, Draw(top_k=3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_that_is_not_finite_gives_no_token(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    assert choose(logits, Draw()) is None
    assert choose(np.full(3, -np.inf, np.float32), Draw()) is None


def test_tokens_come_as_often_as_their_probability() -> None:
    num = 4000
    chosen = [choose(LOGITS, Draw(seed=5, position=at)) for at in range(num)]
    counts = np.bincount(np.array(chosen), minlength=5)
    expected = np.exp(LOGITS.astype(np.float64)) * num
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # 4 degrees of freedom: 1 in 1000


def test_noise_of_a_token_does_not_depend_on_the_others() -> None:
    # Whatever truncation leaves, the winner among all stays the winner if it is left.
    for at in range(200):
        winner = choose(LOGITS, Draw(seed=1, position=at))
        if winner in (1, 3):
            assert choose(LOGITS, Draw(seed=1, position=at, top_k=2)) == winner


def test_log_probabilities_add_up() -> None:
    assert np.exp(log_probabilities(LOGITS * 1).astype(np.float64)).sum() == pytest.approx(1)
    assert log_probabilities(LOGITS)[1] == pytest.approx(np.log(0.4), abs=1e-6)


def test_xtc_is_drawn_as_often_as_asked() -> None:
    drawn = [uniform(Draw(seed=3, position=at)) < 0.3 for at in range(4000)]
    assert 1100 < sum(drawn) < 1300
    # Apart from the noise of any token.
    assert uniform(Draw(seed=0)) != pytest.approx((0x6627E8D5 + 0.5) / 2**32)
