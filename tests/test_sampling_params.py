"""What a caller may say of sampling, and what stands where nothing was said."""

from __future__ import annotations

from typing import Any

import pytest

from insitu.refusal import Refusal
from insitu.sampling_params import PRESETS, RANGES, Order, SamplingParams


@pytest.mark.parametrize("name", RANGES)
def test_the_ends_of_every_range(name: str) -> None:
    one = RANGES[name]
    beyond = [one.least - 1, float("nan"), "1", True, [1]]
    beyond += [one.least] if one.is_above else []
    beyond += [one.most + 1] if one.most < 1e300 else [float("inf")]
    beyond += [1.5] if one.is_whole else []
    for value in beyond:
        with pytest.raises(Refusal) as caught:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        assert caught.value.param == name
    within: list[Any] = [one.most, one.off]
    within += [] if one.is_above else [one.least]
    for value in within:
        assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {5: 100.1}),
        ("logit_bias", {"5": 1}),
        ("logit_bias", {5: True}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", [(5, 1)]),
        ("logit_bias", dict.fromkeys(range(1025), 1)),
        ("bad_words", [""]),
        ("bad_words", [5]),
        ("bad_words", ["a"] * 65),
        ("dry_sequence_breakers", ["a" * 257]),
        ("min_tokens", -1),
        ("min_tokens", None),
        ("sampling_preset", "mirostat"),
        ("logprobs_mode", "none"),
        ("best_of", 129),
        ("best_of", 0),
    ],
)
def test_what_means_nothing_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_best_of_is_no_fewer_than_n() -> None:
    with pytest.raises(Refusal, match="best_of"):
        SamplingParams(n=3, best_of=2)
    assert SamplingParams(n=2, best_of=5).num_choices == 5
    assert not SamplingParams(n=2, best_of=2).drops_choices


def test_a_preset_stands_behind_the_request_and_the_model() -> None:
    llama = SamplingParams(sampling_preset="llama.cpp", min_p=0.0)
    assert llama.preset.order is Order.LLAMA_CPP
    assert llama.over({"top_k": 20}) == {
        **SamplingParams.DEFAULTS,
        "temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_last_n": 64,
    }  # fmt: skip
    assert SamplingParams(sampling_preset="huggingface").over({})["top_k"] == 50
    assert set(PRESETS) == {"insitu", "vllm", "huggingface", "llama.cpp"}


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1e-9, 0.01), (0.01, 0.01), (0.5, 0.5)])
def test_vllm_raises_a_temperature_that_is_all_but_nothing(asked: float, used: float) -> None:
    params = SamplingParams(sampling_preset="vllm", temperature=asked)
    assert params.over({})["temperature"] == used
    assert SamplingParams(temperature=asked).over({})["temperature"] == asked
