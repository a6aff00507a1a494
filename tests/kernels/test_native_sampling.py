"""Sampling against its definition in float64, on every instruction set and thread counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernels.tiny_decoder import Float32, sampling

from insitu.kernels.native import available_isas, sample
from insitu.kernels.reference_sampling import (
    Draw,
    choose,
    kept_ids,
    log_probabilities,
    processed_log_probabilities,
)
from insitu.kernels.sampling import RowStatus, StepResult
from insitu.sampling_params import Order

CHOSEN = RowStatus.CHOSEN
SEED = 0x1234_5678_9ABC_DEF0
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5, "min_p": 0.05},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_k": 3000, "top_p": 0.95},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.7, "top_p": 0.999, "min_p": 0.001},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.5, "min_p": 0.1},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1e6},
    {"temperature": 1e6, "top_p": 0.5},
    {"temperature": 1e300, "top_p": 0.5, "typical_p": 0.9},
    {"temperature": 1.0, "typical_p": 0.6},
    {"temperature": 0.7, "typical_p": 0.2, "top_p": 0.9, "min_p": 0.01},
    {"temperature": 1.5, "typical_p": 1e-9},
    {"temperature": 1.5, "top_n_sigma": 1.0},
    {"temperature": 3.0, "top_n_sigma": 2.5, "top_k": 50},
    {"temperature": 1.0, "top_n_sigma": 1.2, "top_p": 0.7, "min_p": 0.02},
    {"temperature": 1.0, "top_n_sigma": 1e-9},
    {"temperature": 1.0, "xtc_probability": 0.7, "xtc_threshold": 0.02},
    {"temperature": 0.8, "xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 30},
    {"temperature": 2.0, "xtc_probability": 1.0, "xtc_threshold": 0.51},
    {"temperature": 1.3, "xtc_probability": 1.0, "xtc_threshold": 1e-4, "min_p": 0.01},
    {"order": Order.HUGGINGFACE, "temperature": 0.9, "top_k": 50, "top_p": 0.8, "min_p": 0.2},
    {"order": Order.HUGGINGFACE, "temperature": 1.2, "top_p": 0.95, "min_p": 0.1, "typical_p": 0.8},
    {"order": Order.HUGGINGFACE, "temperature": 1.2, "min_p": 0.1},
    {
        "order": Order.LLAMA_CPP, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
        "typical_p": 0.9, "top_n_sigma": 2.0, "xtc_probability": 0.5, "xtc_threshold": 0.1,
    },
    {"order": Order.LLAMA_CPP, "temperature": 1.5, "top_p": 0.9},
    {"order": Order.LLAMA_CPP, "temperature": 1.5, "min_p": 0.1},
    {"order": Order.LLAMA_CPP, "temperature": 1.5, "typical_p": 0.5, "min_p": 0.1},
    {"order": Order.LLAMA_CPP, "temperature": 1.5, "top_k": 7},
]  # fmt: skip
# Of the temperatures that are greedy but in name.
TINY = [1e-3, 1e-6, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324]


def _logits(rows: int, vocab: int, seed: int = 0) -> Float32:
    rng = np.random.default_rng(seed)
    logits = (rng.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[::2] = np.round(logits[::2])  # many ties
    logits[1::3, ::5] = -np.inf
    return logits


def _bits(result: StepResult) -> bytes:
    parts = (result.token_ids, result.logprobs, result.top_ids, result.top_logprobs, result.status)
    return b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [77, 9001])
def test_the_same_token_as_the_definition(settings: dict[str, Any], vocab: int) -> None:
    logits = _logits(24, vocab)
    rows = len(logits)
    draws = [Draw(**settings, seed=SEED, choice=3, position=index) for index in range(rows)]
    wanted = [choose(row, draw) for row, draw in zip(logits, draws, strict=True)]
    arrays = sampling(
        rows, **settings, seed=SEED, choice=3, position=np.arange(rows), num_logprobs=4
    )
    results = [
        sample(logits, arrays, num_threads=threads, isa=isa)
        for isa in available_isas()
        for threads in (1, 3)
    ]
    assert results[0].token_ids.tolist() == wanted
    assert all(_bits(result) == _bits(results[0]) for result in results)


def test_greedy_takes_the_lowest_id_of_ties_and_ignores_truncation() -> None:
    logits = np.zeros((1, 5000), np.float32)
    logits[0, [4500, 700, 4999]] = 7.5
    result = sample(logits, sampling(1, top_k=1, top_p=0.1, min_p=1.0, seed=9))
    assert result.token_ids[0] == 700
    assert np.isnan(result.logprobs[0])


def test_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    logits = _logits(6, 9001)
    result = sample(logits, sampling(6, temperature=0.5, top_k=5, num_logprobs=20, seed=1))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=1, keepdims=True))
    for row in range(6):
        assert result.logprobs[row] == pytest.approx(exact[row, result.token_ids[row]], abs=2e-6)
        top = np.lexsort((np.arange(9001), -logits[row].astype(np.float64)))[:20]
        assert result.top_ids[row].tolist() == top.tolist()
        assert np.allclose(result.top_logprobs[row], exact[row, top], atol=2e-6)


def test_rows_may_want_different_numbers_of_logprobs() -> None:
    result = sample(_logits(3, 500), sampling(3, num_logprobs=[2, -1, 0]))
    assert (result.top_ids[0] >= 0).all()
    assert (result.top_ids[1:] == -1).all()
    assert np.isnan(result.logprobs).tolist() == [False, True, False]


def test_impossible_tokens_are_never_among_the_top() -> None:
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [7, 250]] = [1.0, 2.0]
    result = sample(logits, sampling(1, temperature=1.0, num_logprobs=5, seed=4))
    assert result.top_ids[0].tolist() == [250, 7, -1, -1, -1]
    assert result.token_ids[0] in (7, 250)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, 63, 4096, 4999])
def test_a_row_that_is_not_finite_is_reported_and_hurts_no_other(bad: float, at: int) -> None:
    logits = _logits(3, 5000)
    clean = sample(logits, sampling(3, temperature=1.0, num_logprobs=1))
    logits[1, at] = bad
    for isa in available_isas():
        result = sample(logits, sampling(3, temperature=1.0, num_logprobs=1), isa=isa)
        assert result.status.tolist() == [CHOSEN, RowStatus.NOT_FINITE, CHOSEN]
        assert result.token_ids[[0, 2]].tolist() == clean.token_ids[[0, 2]].tolist()
    logits[1] = -np.inf
    status = sample(logits, sampling(3)).status
    assert status.tolist() == [CHOSEN, RowStatus.NOT_FINITE, CHOSEN]


def test_tokens_come_as_often_as_their_probability() -> None:
    probabilities = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    num = 20000
    logits = np.tile(np.log(probabilities).astype(np.float32), (num, 1))
    arrays = sampling(num, temperature=1.0, seed=11, position=np.arange(num))
    counts = np.bincount(sample(logits, arrays).token_ids, minlength=5)
    chi_square = ((counts - num * probabilities) ** 2 / (num * probabilities)).sum()
    assert chi_square < 18.5  # 4 degrees of freedom: one in a thousand


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, *SETTINGS], ids=str)
def test_processed_log_probabilities_are_of_what_was_chosen_among(settings: dict[str, Any]) -> None:
    vocab = 2000
    logits = _logits(8, vocab)
    arrays = sampling(
        8, **settings, seed=SEED, position=np.arange(8), num_logprobs=6, is_processed=1
    )
    results = [
        sample(logits, arrays, num_threads=threads, isa=isa)
        for isa in available_isas()
        for threads in (1, 3)
    ]
    assert all(_bits(result) == _bits(results[0]) for result in results)
    for row, (token_id, logprob) in enumerate(
        zip(results[0].token_ids, results[0].logprobs, strict=True)
    ):
        exact = processed_log_probabilities(logits[row], Draw(**settings, seed=SEED, position=row))
        assert logprob == pytest.approx(exact[token_id], abs=3e-6)
        num = min(6, int((exact > -np.inf).sum()))
        assert (results[0].top_ids[row, num:] == -1).all()
        told = results[0].top_logprobs[row, :num]
        assert np.allclose(told, np.sort(exact)[::-1][:num], atol=3e-6)
        assert np.allclose(told, exact[results[0].top_ids[row, :num]], atol=3e-6)


@pytest.mark.parametrize(
    ("top_p", "depth", "num_kept"),
    [
        (
            0.5,
            25.0,
            2,
        ),  # the others have two units of mass each: half of all is more than one token
        (0.5, 40.0, 1),  # they have none
        (0.25, 25.0, 1),
        (0.9, 25.0, 2),
        (1 - 1e-9, 25.0, None),  # and some of the others
    ],
)
def test_top_p_is_exact_where_light_tokens_decide(
    top_p: float, depth: float, num_kept: int | None
) -> None:
    logits = np.full((1, 20_000), 3.0 - depth, np.float32)
    logits[0, [70, 9000]] = 3.0
    wanted = kept_ids(logits[0], Draw(temperature=1.0, top_p=top_p))
    assert len(wanted) == num_kept or num_kept is None
    arrays = sampling(1, temperature=1.0, top_p=top_p, seed=SEED, num_logprobs=4, is_processed=1)
    share = -np.log(len(wanted) if num_kept else 2.0)
    for isa in available_isas():
        result = sample(logits, arrays, isa=isa)
        num = min(4, len(wanted))
        assert result.top_ids[0, :num].tolist() == wanted[:num].tolist()
        assert (result.top_ids[0, num:] == -1).all()
        assert result.top_logprobs[0, 0] == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("spread", [1.0, 2.0, 3.0, 5.0])
def test_top_p_of_a_large_vocabulary_keeps_the_same_tokens(spread: float) -> None:
    shares = [0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 0.999, 0.99999]
    rows, vocab = len(shares), 30_000
    logits = (np.random.default_rng(5).standard_normal((rows, vocab)) * spread).astype(np.float32)
    arrays = sampling(
        rows, temperature=0.9, top_p=shares, seed=SEED, num_logprobs=vocab, is_processed=1
    )
    result = sample(logits, arrays, num_threads=2)
    for row, share in enumerate(shares):
        told = result.top_ids[row]
        wanted = kept_ids(logits[row], Draw(temperature=0.9, top_p=share))
        assert np.sort(told[told >= 0]).tolist() == np.sort(wanted).tolist()


def test_a_given_token_is_not_chosen_but_told_of() -> None:
    logits = _logits(4, 500)
    arrays = sampling(
        4, temperature=1.0, given_id=[-1, 7, 499, 3], num_logprobs=[2, 2, 0, -1], seed=3
    )
    result = sample(logits, arrays)
    assert result.token_ids.tolist()[1:] == [7, 499, 3]
    for row, token_id in ((1, 7), (2, 499)):
        exact = log_probabilities(logits[row])
        assert result.logprobs[row] == pytest.approx(exact[token_id], abs=2e-6)
    assert result.top_ids[1].tolist() == kept_ids(logits[1], Draw())[:2].tolist()
    assert np.isnan(result.logprobs[3])


@pytest.mark.parametrize("temperature", TINY)
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = _logits(6, 3000)
    greedy = sample(logits, sampling(6)).token_ids.tolist()
    for settings in ({}, {"top_p": 0.9}, {"typical_p": 0.9}, {"min_p": 0.1}, {"top_k": 5}):
        for seed in range(1, 4):
            arrays = sampling(6, temperature=temperature, seed=seed, num_logprobs=1, **settings)
            result = sample(logits, arrays)
            # Of equal logits any may be the one: the lowest id where there is one alone.
            for row, token_id in enumerate(result.token_ids):
                assert logits[row, token_id] == logits[row, greedy[row]]
            assert (result.status == RowStatus.CHOSEN).all()


def test_a_huge_temperature_is_all_but_even() -> None:
    num, vocab = 20000, 8
    logits = np.tile(_logits(2, vocab)[0], (num, 1))
    arrays = sampling(num, temperature=1e6, seed=2, position=np.arange(num))
    counts = np.bincount(sample(logits, arrays).token_ids, minlength=vocab)
    assert ((counts - num / vocab) ** 2 / (num / vocab)).sum() < 24.3  # 7 degrees: 1 in 1000
