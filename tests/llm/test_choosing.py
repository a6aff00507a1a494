"""Ways of choosing, through ``LLM``: what is banned, biased, penalised, ranked and told."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from tiny_model import Vocabulary

from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from insitu.llm.front_door import LLM

PROMPT = "abcabc"


def sampling(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 12, "seed": 3, **fields})


def id_of(text: str) -> int:
    return Vocabulary().id_of_byte(ord(text))


def test_a_banned_token_never_comes_and_a_biased_one_does(random_llm: LLM) -> None:
    (greedy,) = random_llm.generate(PROMPT, sampling(temperature=0))
    ban = {greedy.token_ids[0]: -100}
    (other,) = random_llm.generate(PROMPT, sampling(temperature=0, logit_bias=ban))
    assert greedy.token_ids[0] not in other.token_ids
    wanted = id_of("q")
    (biased,) = random_llm.generate(PROMPT, sampling(logit_bias={wanted: 100}))
    assert set(biased.token_ids) == {wanted}


def test_a_bias_outside_the_vocabulary_is_refused(random_llm: LLM) -> None:
    size = random_llm.describe().vocab_size
    for token_id in (size, -1):
        with pytest.raises(Refusal) as caught:
            random_llm.generate(PROMPT, sampling(logit_bias={token_id: 1}))
        assert (caught.value.param, caught.value.code) == ("logit_bias", "invalid_token_id")


@pytest.mark.parametrize("stop", [[10**6], [-1]])
def test_a_stop_id_outside_the_vocabulary_is_refused_and_hurts_nobody(
    random_llm: LLM, stop: list[int]
) -> None:
    before = random_llm.generate("b", sampling(temperature=0, max_tokens=30))
    with pytest.raises(Refusal) as caught:
        random_llm.generate(["a", "b"], sampling(stop_token_ids=stop, min_tokens=5))
    assert caught.value.param == "stop_token_ids"
    after = random_llm.generate("b", sampling(temperature=0, max_tokens=30))
    assert after[0].token_ids == before[0].token_ids


def test_no_end_before_min_tokens(chain_llm: LLM) -> None:
    asked = sampling(temperature=0, max_tokens=20)
    (plain,) = chain_llm.generate("x", asked)
    (longer,) = chain_llm.generate("x", sampling(temperature=0, max_tokens=20, min_tokens=8))
    assert plain.text == longer.text[:2] == "yz"
    assert len(plain.token_ids) == 3
    assert len(longer.token_ids) >= 9  # the eighth is followed by an end id at the earliest
    with pytest.raises(Refusal) as caught:
        chain_llm.generate("x", sampling(max_tokens=4, min_tokens=5))
    assert caught.value.param == "min_tokens"


def test_bad_words_are_not_spelt(chain_llm: LLM) -> None:
    (free,) = chain_llm.generate("a", sampling(temperature=0))
    (kept,) = chain_llm.generate("a", sampling(temperature=0, bad_words=["ef"]))
    assert "ef" in free.text
    assert kept.text.startswith("bcde")
    assert "ef" not in kept.text


def test_penalties_end_a_loop(random_llm: LLM) -> None:
    (loop,) = random_llm.generate(PROMPT, sampling(temperature=0, max_tokens=60, ignore_eos=True))
    for fields in ({"frequency_penalty": 2.0}, {"repetition_penalty": 5.0}):
        asked = sampling(temperature=0, max_tokens=60, ignore_eos=True, **fields)
        (varied,) = random_llm.generate(PROMPT, asked)
        assert len(set(varied.token_ids)) > len(set(loop.token_ids))


def test_dry_breaks_what_is_said_again(chain_llm: LLM) -> None:
    (again,) = chain_llm.generate("abcdef abc", sampling(temperature=0, max_tokens=2))
    dry = {"dry_multiplier": 500.0, "dry_allowed_length": 2}
    (other,) = chain_llm.generate("abcdef abc", sampling(temperature=0, max_tokens=2, **dry))
    (crossed,) = chain_llm.generate(
        "abcdef abc", sampling(temperature=0, max_tokens=2, dry_sequence_breakers=["c"], **dry)
    )
    assert again.text == "de"
    assert not other.text.startswith("d")
    assert crossed.text == "de"


def test_best_of_keeps_the_likeliest_and_counts_all(random_llm: LLM) -> None:
    many = random_llm.generate(PROMPT, sampling(n=6, logprobs=0))
    best = random_llm.generate(PROMPT, sampling(n=2, best_of=6))
    means = {
        one.token_ids: sum(token.logprob for token in one.logprobs) / len(one.logprobs)
        for one in many
    }
    ranked = sorted(means, key=lambda ids: -means[ids])
    assert [one.token_ids for one in best] == ranked[:2]
    assert [one.index for one in best] == [0, 1]
    assert all(not one.logprobs for one in best)
    num_all = sum(one.usage.completion_tokens for one in many)
    assert sum(one.usage.completion_tokens for one in best) == num_all


def test_processed_log_probabilities_are_those_of_the_draw(random_llm: LLM) -> None:
    fields = {"top_k": 3, "temperature": 0.5, "logprobs": 5}
    (raw,) = random_llm.generate(PROMPT, sampling(**fields))
    (processed,) = random_llm.generate(PROMPT, sampling(**fields, logprobs_mode="processed"))
    assert raw.token_ids == processed.token_ids
    assert all(len(token.top) == 5 for token in raw.logprobs)
    for before, after in zip(raw.logprobs, processed.logprobs, strict=True):
        assert len(after.top) == 3
        assert sum(math.exp(one.logprob) for one in after.top) == pytest.approx(1, abs=1e-5)
        sharper = [math.exp(one.logprob / 0.5) for one in before.top[:3]]
        wanted = math.exp(before.logprob / 0.5) / sum(sharper)
        assert math.exp(after.logprob) == pytest.approx(wanted, rel=1e-4)


def test_a_preset_is_its_fields(random_llm: LLM) -> None:
    (preset,) = random_llm.generate(PROMPT, sampling(temperature=None, sampling_preset="vllm"))
    (plain,) = random_llm.generate(PROMPT, sampling())
    assert preset.token_ids == plain.token_ids
    (warm,) = random_llm.generate(PROMPT, sampling(sampling_preset="huggingface", top_k=0))
    assert warm.token_ids == plain.token_ids


@pytest.mark.parametrize("temperature", [1e-3, 1e-6, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324, -0.0])
def test_all_but_no_temperature_is_none(random_llm: LLM, temperature: float) -> None:
    (greedy,) = random_llm.generate(PROMPT, sampling(temperature=0))
    for seed in range(1, 6):
        (answer,) = random_llm.generate(PROMPT, sampling(temperature=temperature, seed=seed))
        assert answer.token_ids == greedy.token_ids


@pytest.mark.parametrize("temperature", [-1, float("inf"), float("nan"), "NaN"])
def test_what_is_no_temperature_is_refused(temperature: Any) -> None:
    with pytest.raises(Refusal) as caught:
        sampling(temperature=temperature)
    assert caught.value.param == "temperature"


def test_a_huge_temperature_is_no_trouble(random_llm: LLM) -> None:
    (answer,) = random_llm.generate(
        PROMPT, sampling(temperature=1e6, max_tokens=100, ignore_eos=True, logprobs=1)
    )
    assert len(set(answer.token_ids)) > 50
    assert all(math.isfinite(one.logprob) for one in answer.logprobs)


def test_a_prompt_is_told_of_from_its_second_token_on(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate(
        "abcx", sampling(temperature=0, n=1, prompt_logprobs=2, max_tokens=1)
    )
    told = answer.prompt_logprobs
    assert [one.token_id for one in told] == list(answer.prompt_ids[1:])
    likely = {one.text: one.logprob > math.log(0.5) for one in told}
    assert likely["b"]
    assert likely["c"]
    assert not likely["x"]
    assert all(len(one.top) == 2 for one in told)
    (other,) = chain_llm.generate("abcx", sampling(temperature=0, max_tokens=1))
    assert other.prompt_logprobs == ()
    assert other.token_ids == answer.token_ids
