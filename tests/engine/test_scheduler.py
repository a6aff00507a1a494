"""The engine's bookkeeping over a scripted model: same tokens whatever the pressure, no leaks."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest
from engine.scripted_runner import (
    BLOCK_SIZE,
    expected_tokens,
    make_engine,
    make_prompt,
    run_all,
    tokens_of,
)

from insitu.engine.scheduler import Scheduler
from insitu.refusal import Refusal
from insitu.types import FinishReason


def test_schedule_stays_one_screen() -> None:
    assert len(inspect.getsource(Scheduler.schedule).splitlines()) < 60


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, 8, 31, 32, 33])
def test_a_prompt_alone(num_tokens: int) -> None:
    engine, _ = make_engine()
    prompt = make_prompt("a", num_tokens)
    engine.add(prompt)
    outputs = run_all(engine)["a"]
    assert tokens_of(outputs) == expected_tokens(prompt)
    assert [output.is_last for output in outputs] == [False] * 5 + [True]
    assert outputs[-1].finish_reason is FinishReason.LENGTH
    assert engine.scheduler.pool.num_held == 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_exactly_max_tokens(max_tokens: int) -> None:
    engine, _ = make_engine()
    engine.add(make_prompt("a", max_tokens=max_tokens))
    assert len(tokens_of(run_all(engine)["a"])) == max_tokens


def test_a_stop_id_ends_and_is_counted() -> None:
    engine, _ = make_engine()
    prompt = make_prompt("a", max_tokens=9)
    stop = expected_tokens(prompt)[3]
    engine.add(replace(prompt, stop_ids=frozenset({stop})))
    outputs = run_all(engine)["a"]
    assert tokens_of(outputs)[-1] == stop
    assert len(outputs) == 4
    assert outputs[-1].finish_reason is FinishReason.STOP


def test_no_token_before_the_last_chunk() -> None:
    engine, runner = make_engine(tokens=8, tokens_alone=8)
    engine.add(make_prompt("a", num_tokens=33, max_tokens=1))
    for _ in range(4):
        assert engine.step() == []
    assert len(engine.step()) == 1
    assert runner.max_tokens_seen == 8


def test_a_long_prompt_does_not_hold_others_up() -> None:
    engine, runner = make_engine(tokens=8, tokens_alone=32)
    engine.add(make_prompt("decoding", max_tokens=20))
    engine.step()
    runner.max_tokens_seen = 0
    engine.add(make_prompt("long", num_tokens=60, max_tokens=1))
    for _ in range(8):
        assert [output.request_id for output in engine.step()] == ["decoding"]
    assert runner.max_tokens_seen == 8


def test_a_short_prompt_does_not_wait_for_all_of_an_earlier_long_one() -> None:
    engine, runner = make_engine(tokens=8, tokens_alone=32, max_num_seqs=4, num_blocks=400)
    engine.add(make_prompt("long", num_tokens=900, max_tokens=1))
    engine.step()
    engine.add(make_prompt("short", num_tokens=10, max_tokens=1))
    for _ in range(3):  # the first of them was given out before it came
        assert engine.step() == []
    assert [output.request_id for output in engine.step()] == ["short"]
    assert runner.max_tokens_seen == 32


def test_preemption_gives_the_same_tokens_and_is_bounded() -> None:
    # Room for about one and a half of four.
    engine, _ = make_engine(num_blocks=80, max_num_seqs=4)
    prompts = [make_prompt(name, 3 * BLOCK_SIZE, 200, seed) for seed, name in enumerate("abcd")]
    for prompt in prompts:
        engine.add(prompt)
    sequences = list(engine.scheduler.waiting)
    outputs = run_all(engine)
    for prompt in prompts:
        assert tokens_of(outputs[prompt.request_id]) == expected_tokens(prompt)
    num_preemptions = [sequence.num_preemptions for sequence in sequences]
    assert sum(num_preemptions) > 0
    assert max(num_preemptions) < 10
    assert num_preemptions[0] == 0
    assert engine.scheduler.pool.num_held == 0


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    engine, _ = make_engine(num_blocks=24)
    with pytest.raises(Refusal, match=r"120 tokens.*10.*96 tokens") as caught:
        engine.add(make_prompt("a", num_tokens=120, max_tokens=10))
    assert caught.value.param == "prompt"
    with pytest.raises(Refusal) as caught:
        engine.add(make_prompt("a", num_tokens=90, max_tokens=100))
    assert caught.value.param == "max_tokens"
    # The last token is never fed back: 97 tokens fit into 96.
    engine.add(make_prompt("a", num_tokens=90, max_tokens=7))
    assert len(run_all(engine)["a"]) == 7


def test_one_row_that_is_not_finite_ends_alone() -> None:
    engine, runner = make_engine()
    runner.not_finite = {"bad"}
    for name in ("a", "bad", "b"):
        engine.add(make_prompt(name))
    outputs = run_all(engine)
    assert len(outputs["bad"]) == 1
    assert outputs["bad"][0].error is not None
    for name in ("a", "b"):
        assert tokens_of(outputs[name]) == expected_tokens(make_prompt(name))


def test_an_exception_ends_the_sequence_it_is_about_and_no_other() -> None:
    engine, runner = make_engine(max_num_seqs=3)
    for name in ("a", "bad", "b", "later"):
        engine.add(make_prompt(name))
    engine.step()
    runner.throws = {"bad"}
    first = engine.step()
    assert [output.request_id for output in first if output.error] == ["bad"]
    runner.fail_next = ValueError("once")
    outputs = run_all(engine)
    for name in ("a", "b"):
        assert tokens_of(outputs[name]) == expected_tokens(make_prompt(name))[2:]
    assert tokens_of(outputs["later"]) == expected_tokens(make_prompt("later"))
    assert engine.scheduler.pool.num_held == 0
    counters = engine.stats.counters()
    assert counters["sequences_failed"] == 1
    assert counters["sequences_finished"] == 3
    assert counters["failed_steps"] == 2


def test_few_logit_rows_delay_but_change_nothing() -> None:
    engine, _ = make_engine(logit_rows=2, max_num_seqs=6)
    prompts = [make_prompt(f"p{index}", index + 1, 5) for index in range(6)]
    for prompt in prompts:
        engine.add(prompt)
    outputs = run_all(engine)
    for prompt in prompts:
        assert tokens_of(outputs[prompt.request_id]) == expected_tokens(prompt)
