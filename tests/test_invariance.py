"""The same bits in every way a server may be asked: 40 requests against one plain way to ask them.

A failure names the first step that differs: its request, choice, token index and both values.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariance import AXES, Answer, Load, Way, ask_all, covering_ways, first_difference
from tiny_model import write_gguf

if TYPE_CHECKING:
    from collections.abc import Sequence

WAYS = covering_ways(2)
FEW_WAYS = covering_ways(1)
# Plain C++ runs a real model at three tokens a second: it is asked these of the requests alone (one
# of them longer than a block), with a pool that few tokens fill.
SHORT = (3, 9, 12, 20, 30)
SHORT_KV_TOKENS = 128


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two random layers; its long prompts span six chunks of attention."""
    path = tmp_path_factory.mktemp("invariance") / "tiny.gguf"
    shape = write_gguf(path, max_model_len=2048)
    vocab_size = len(shape.vocabulary) - 4  # no control tokens
    return Load(path, vocab_size, long_tokens=1500, max_tokens=10, kv_tokens=2560)


@cache
def plain_answers(load: Load, dtype: str) -> list[Answer]:
    """One at a time, in a plain server: what everything else is compared with."""
    return ask_all(load, Way(kv_cache_dtype=dtype))


def check(load: Load, way: Way, seed: int = 0, which: Sequence[int] | None = None) -> None:
    expected = plain_answers(load, way.kv_cache_dtype)
    if which is not None:
        expected = [expected[index] for index in which]
        load = replace(load, kv_tokens=SHORT_KV_TOKENS)
    difference = first_difference(expected, ask_all(load, way, seed, which))
    assert difference is None, f"{way}: {difference}"


def test_the_requests_are_varied(tiny: Load) -> None:
    bodies, answers = tiny.bodies(), plain_answers(tiny, "f16")
    assert len(bodies) == len(answers) == 40
    assert sum(len(body["prompt"]) > 500 for body in bodies) == 4
    assert {len(answer) for answer in answers} == {1, 2}
    ends = [choice[2] for answer in answers for choice in answer]
    assert set(ends) == {"stop", "length"}
    stopped = [body for body, answer in zip(bodies, answers, strict=True) if answer[0][2] == "stop"]
    assert any("stop" in body for body in stopped)
    sampled = [answer for body, answer in zip(bodies, answers, strict=True) if body.get("n") == 2]
    assert any(one[0][0] != one[1][0] for one in sampled)


def test_every_two_values_meet_in_some_way() -> None:
    assert len(WAYS) < 60
    names = list(AXES)
    for index, one in enumerate(names):
        for other in names[index + 1 :]:
            met = {(getattr(way, one), getattr(way, other)) for way in WAYS}
            assert len(met) == len(AXES[one]) * len(AXES[other])


def test_a_difference_is_told_by_its_step() -> None:
    steps = [(7, -0.5, [7], [-0.5]), (9, -1.25, [9], [-1.25])]
    others = [steps[0], (9, -1.2500001, [9], [-1.25])]
    one: list[Answer] = [[(list(steps), "ab", "length")]]
    assert first_difference(one, [[(list(steps), "ab", "length")]]) is None
    told = first_difference(one, [[(list(others), "ab", "length")]])
    assert told is not None
    assert told.startswith("request 0, choice 0, token 1: ")
    assert "-1.25," in told
    assert "-1.2500001" in told
    told = first_difference(one, [[(steps[:1], "a", "stop")]])
    assert told == f"request 0, choice 0, token 1: expected {steps[1]}, got None"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_way_moves_a_bit(tiny: Load, way: Way) -> None:
    check(tiny, way)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    way=st.builds(Way, **{name: st.sampled_from(values) for name, values in AXES.items()}),
    seed=st.integers(0, 2**32),
)
def test_any_way_and_any_arrivals_move_no_bit(tiny: Load, way: Way, seed: int) -> None:
    check(tiny, way, seed)


@cache
def real(name: str) -> Load:
    """A model of ``INSITU_TEST_MODELS_DIR``, and prompts of 1,500 tokens among the others."""
    path = Path(os.environ["INSITU_TEST_MODELS_DIR"]) / f"{name}.gguf"
    return Load(path, 49_000, long_tokens=1500, max_tokens=12, kv_tokens=4096)


@pytest.mark.slow(reason="minutes a way on two cores; needs models of INSITU_TEST_MODELS_DIR")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", FEW_WAYS, ids=str)
@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1", "qwen2.5-coder-0.5b-instruct"])
def test_no_way_moves_a_bit_of_a_real_model(name: str, way: Way) -> None:
    check(real(name), way, which=SHORT if way.isa == "generic" else None)
