"""LLM over tiny models: stopping, counting, log-probabilities, and the same answer every way."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from llm.counting import counted_anew
from tiny_model import write_gguf

import insitu
from insitu.llm.front_door import LLM
from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.types import FinishReason
from insitu.weights.locate import ModelNotPulled

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = SamplingParams(temperature=0, max_tokens=40, logprobs=3)


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 40, **fields})


def test_the_root_exports_lazily() -> None:
    assert insitu.LLM is LLM
    assert insitu.SamplingParams is SamplingParams
    with pytest.raises(AttributeError, match="nothing"):
        insitu.nothing  # noqa: B018


def test_an_end_id_is_counted_and_shows_as_nothing(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate("w", GREEDY)
    assert answer.text == "xyz"
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage.completion_tokens == 4 == len(answer.token_ids)
    assert [one.text for one in answer.logprobs] == ["x", "y", "z", ""]
    assert answer.usage.prompt_tokens == len(answer.prompt_ids)


def test_ignore_eos_goes_on(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate("x", greedy(ignore_eos=True, max_tokens=9))
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.usage.completion_tokens == 9
    assert answer.text == "yz"  # control tokens show as nothing


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_exactly_max_tokens(chain_llm: LLM, max_tokens: int) -> None:
    (answer,) = chain_llm.generate("a", greedy(max_tokens=max_tokens))
    assert answer.text == "bcdefg"[:max_tokens]
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.usage.completion_tokens == max_tokens == len(answer.token_ids)


def test_a_stop_string_over_several_tokens(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate("a", greedy(stop="fgh"))
    assert answer.text == "bcde"
    assert answer.finish_reason is FinishReason.STOP
    # b to h: the token that completed the stop is the last one counted.
    assert answer.usage.completion_tokens == 7


def test_a_stop_string_that_never_comes_true(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate("v", greedy(stop=["yzz", "xx"]))
    assert answer.text == "wxyz"
    assert answer.finish_reason is FinishReason.STOP
    assert answer.usage.completion_tokens == 5


def test_a_stop_id(chain_llm: LLM) -> None:
    stop = chain_llm.generate("d", greedy(max_tokens=1))[0].token_ids[0]
    (answer,) = chain_llm.generate("a", greedy(stop_token_ids=[stop], logprobs=0))
    assert answer.text == "bcd"
    assert answer.usage.completion_tokens == 4
    assert answer.finish_reason is FinishReason.STOP
    assert answer.token_ids[-1] == stop


def test_a_character_of_two_tokens_is_whole(chain_llm: LLM) -> None:
    (answer,) = chain_llm.generate("0", greedy(max_tokens=3))
    assert answer.text == "é!"
    assert len(answer.token_ids) == 3
    (cut,) = chain_llm.generate("0", greedy(max_tokens=1))
    assert cut.text == "\N{REPLACEMENT CHARACTER}"


def test_logprobs(random_llm: LLM) -> None:
    (answer,) = random_llm.generate("hello world", GREEDY)
    assert len(answer.logprobs) == len(answer.token_ids)
    for one in answer.logprobs:
        assert len(one.top) == 3
        assert one.top[0].token_id == one.token_id
        values = [top.logprob for top in one.top]
        assert values == sorted(values, reverse=True)
        for value in values:
            assert math.isfinite(value)
            assert value <= 0
            # As short as the float32 itself, and back to it.
            assert json.dumps(value) == json.dumps(float(str(np.float32(value))))
    (plain,) = random_llm.generate("hello world", greedy())
    assert plain.token_ids == answer.token_ids
    assert plain.logprobs == ()
    (bare,) = random_llm.generate("hello world", greedy(logprobs=0))
    assert [one.logprob for one in bare.logprobs] == [one.logprob for one in answer.logprobs]
    assert all(one.top == () for one in bare.logprobs)


def test_together_as_alone(random_llm: LLM) -> None:
    prompts: list[str | list[int]] = [
        "hello",
        "the user and the world",
        "s" * 90,
        [5, 6, 7],
        "hello",
        "a",
    ]
    params = [
        SamplingParams(max_tokens=20 + i, temperature=0.9 * (i % 2), seed=i, logprobs=i % 3)
        for i in range(len(prompts))
    ]
    together = random_llm.generate(prompts, params)
    alone = [random_llm.generate([one], own)[0] for one, own in zip(prompts, params, strict=True)]
    assert list(map(counted_anew, together)) == list(map(counted_anew, alone))


def test_choices_are_their_own_and_the_prompt_is_shared(random_path: Path) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.0, seed=9, logprobs=1)
    with LLM(random_path) as llm, LLM(random_path, prefix_caching="off", max_num_seqs=1) as plain:
        three = llm.generate(["s" * 70, "hello"], replace(params, n=3))
        one_by_one = plain.generate(["s" * 70, "hello"], replace(params, n=3))
        first = llm.generate("hello", params)
    assert [one.index for one in three] == [0, 1, 2, 0, 1, 2]
    assert three[3] == first[0]
    assert three == one_by_one
    assert len({one.token_ids for one in three[:3]}) == 3


def test_a_prefix_is_found_again_unless_the_cache_is_off(random_path: Path) -> None:
    for state, is_found in (("on", True), ("off", False)):
        with LLM(random_path, prefix_caching=state) as llm:
            cold, warm = (llm.generate("s" * 90, greedy(seed=1))[0] for _ in range(2))
        assert counted_anew(warm) == cold
        assert (warm.usage.cached_tokens > 0) == is_found
        assert cold.usage.cached_tokens == 0


def test_settings_change_no_bit(random_path: Path, random_llm: LLM) -> None:
    params = SamplingParams(max_tokens=50, temperature=0.8, seed=3, logprobs=5)
    prompts = ["hello world " * 9, "the", "a"]
    expected = random_llm.generate(prompts, params)
    variants: tuple[dict[str, Any], ...] = (
        {"threads": 2},
        {"max_num_batched_tokens": 8},
        {"max_num_seqs": 1, "max_model_len": 300},
        {"kv_cache_bytes": 256 * 192},  # little more than one sequence: they preempt each other
    )
    for settings in variants:
        with LLM(random_path, **settings) as llm:
            assert llm.generate(prompts, params) == expected, settings


def test_a_seed_is_drawn_and_reported(random_llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=1.5)
    first, second = random_llm.generate(["hello", "hello"], params)
    assert first.seed != second.seed
    assert first.token_ids != second.token_ids
    again = SamplingParams(max_tokens=30, temperature=1.5, seed=first.seed)
    assert random_llm.generate("hello", again)[0].token_ids == first.token_ids


def test_chat(random_llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello <|im_end|> world"}]
    answer = random_llm.chat(messages, greedy(max_tokens=5))
    assert len(answer.token_ids) == 5
    assert "<|im_end|>" not in answer.text


def test_to_the_end_of_the_context(random_llm: LLM) -> None:
    (answer,) = random_llm.generate([[5] * 500], SamplingParams(temperature=0, ignore_eos=True))
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.usage.total_tokens == 512


def test_what_cannot_fit_names_three_numbers(random_llm: LLM) -> None:
    with pytest.raises(Refusal, match=r"512.*500.*13.*513") as caught:
        random_llm.generate([[5] * 500], greedy(max_tokens=13))
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.status == 400
    with pytest.raises(Refusal, match=r"512.*512") as caught:
        random_llm.generate([[5] * 512], SamplingParams())
    assert caught.value.param == "prompt"


def test_a_text_beyond_all_hope_is_refused_before_it_is_tokenised(
    random_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encoded(*_: object) -> None:
        raise AssertionError("tokenised")

    monkeypatch.setattr(type(random_llm._generator.preparer.tokenizer), "encode_typed", encoded)
    with pytest.raises(Refusal, match=r"512 tokens.*100000 characters") as caught:
        random_llm.generate("a" * 100_000, greedy(max_tokens=1))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(Refusal) as caught:
        random_llm.chat([{"role": "user", "content": "a" * 100_000}], greedy(max_tokens=1))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_chat_that_is_too_long_names_its_messages(random_llm: LLM) -> None:
    with pytest.raises(Refusal, match="512") as caught:
        random_llm.chat([{"role": "user", "content": "ab " * 600}], greedy(max_tokens=1))
    assert caught.value.param == "messages"


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_outside_the_vocabulary(random_llm: LLM, token_id: int) -> None:
    with pytest.raises(Refusal) as caught:
        random_llm.generate([[5, token_id]], greedy())
    assert caught.value.param == "prompt"
    with pytest.raises(Refusal) as caught:
        random_llm.generate("a", greedy(stop_token_ids=[token_id]))
    assert caught.value.param == "stop_token_ids"


def test_empty_prompts_and_warnings(random_llm: LLM) -> None:
    with pytest.raises(Refusal, match="no tokens"):
        random_llm.generate("", greedy(), add_special_tokens=False)
    with pytest.raises(Refusal, match="no tokens"):
        random_llm.generate([[]], greedy())
    (spelled,) = random_llm.generate("a<|im_end|>", greedy(max_tokens=1))
    assert "parse_special" in spelled.warnings[0]
    (parsed,) = random_llm.generate("a<|im_end|>", greedy(max_tokens=1), parse_special=True)
    assert parsed.warnings == ()
    assert len(parsed.prompt_ids) < len(spelled.prompt_ids)


def test_unknown_settings_and_models(random_path: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="thread_count"):
        LLM(random_path, thread_count=3)
    with pytest.raises(ModelNotPulled, match="insitu pull smollm2-135m"):
        LLM("smollm2-135m", models_dir=tmp_path)
    with pytest.raises(ValueError, match="2 SamplingParams for 1 prompts"):
        LLM.generate(None, ["a"], [GREEDY, GREEDY])  # type: ignore[arg-type]


def test_the_models_sampling_defaults_fill_what_is_left_out(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", pairs={"general.sampling.top_k": 1})
    free, greedy_one = (SamplingParams(max_tokens=12, seed=1, top_k=k) for k in (0, None))
    with LLM(tmp_path / "tiny.gguf", threads=1) as llm:
        assert llm.describe().sampling_defaults == {"top_k": 1}
        (likeliest,) = llm.generate("hello", greedy(max_tokens=12))
        (defaulted,) = llm.generate("hello", greedy_one)
        (sampled,) = llm.generate("hello", free)
    assert defaulted.token_ids == likeliest.token_ids != sampled.token_ids
    with LLM(tmp_path / "tiny.gguf", threads=1, sampling_defaults="none") as llm:
        assert llm.describe().sampling_defaults == {}
        assert llm.generate("hello", greedy_one)[0].token_ids == sampled.token_ids


WRONG: dict[str, list[Any]] = {
    "max_tokens": [0, -1, 1.5, "4", True, [2]],
    "temperature": [-1, "1", True, math.nan, math.inf, []],
    "top_k": [-1, 1.5, "1", True],
    "top_p": [0, 1.1, math.nan, "1", False],
    "min_p": [-0.1, 2, math.nan, "0"],
    "seed": [-1, 2**64, 1.0, "1", False],
    "stop": [5, [""], [5], [None], b"x", ["x"] * 17],
    "stop_token_ids": [5, "5", [1.0], ["a"], [True], b"x"],
    "logprobs": [-1, 21, 1.5, True, "1"],
    "ignore_eos": [1, "false", None],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values]
)
def test_sampling_params_are_what_they_say_or_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        SamplingParams(**{field: value})
    assert (caught.value.param, caught.value.status) == (field, 400)
    assert field in caught.value.message


def test_whole_numbers_of_numpy_are_numbers(random_llm: LLM) -> None:
    plain = random_llm.generate([[5, 6]], greedy(max_tokens=3, top_k=4, seed=7))
    params = greedy(
        max_tokens=np.int64(3), top_k=np.int32(4), seed=np.uint64(7), top_p=np.float32(1)
    )
    assert (
        random_llm.generate([np.array([5, 6]).tolist(), tuple(np.array([5, 6]))], params)
        == plain * 2
    )


@pytest.mark.parametrize("prompt", [[1.0], ["a"], b"x", [None]])
def test_prompts_are_texts_or_ids(random_llm: LLM, prompt: Any) -> None:
    with pytest.raises(TypeError):
        random_llm.generate([prompt], greedy(max_tokens=1))


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "robot", "content": "a"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "messages[0].content"),
    ],
)
def test_messages_are_texts_under_known_roles(
    random_llm: LLM, messages: list[dict[str, Any]], param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        random_llm.chat(messages, greedy(max_tokens=1))
    assert caught.value.param == param


def test_a_program_that_closes_nothing_ends_in_silence(random_path: Path) -> None:
    code = (
        "import sys, threading\nfrom insitu import LLM\n"
        "dropped = LLM(sys.argv[1], threads=1)\ndel dropped\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "kept = LLM(sys.argv[1], threads=1)\nkept.generate('a')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(random_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
