"""The engine's thread: sleeps, delivers once a step, aborts, drains, and never dies silently."""

from __future__ import annotations

import asyncio
import queue
import random
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from engine.scripted_runner import expected_tokens, make_engine, make_prompt, tokens_of

from insitu.engine.loop import EngineLoop
from insitu.refusal import Refusal, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.scripted_runner import ScriptedRunner

    from insitu.engine.engine import Engine
    from insitu.engine.sequence import Output, Prompt


@pytest.fixture
def parts() -> Iterator[tuple[EngineLoop, Engine, ScriptedRunner]]:
    engine, runner = make_engine(num_blocks=400, max_num_seqs=4)
    loop = EngineLoop(engine, max_num_waiting=3)
    yield loop, engine, runner
    runner.gate.set()
    loop.close()


def collect(outputs: queue.SimpleQueue[Output]) -> list[Output]:
    got = [outputs.get(timeout=10)]
    while not got[-1].is_last:
        got.append(outputs.get(timeout=10))
    return got


def submit(loop: EngineLoop, prompt: Prompt) -> queue.SimpleQueue[Output]:
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit(prompt, outputs.put)
    return outputs


def until(condition: object, timeout_s: float = 10) -> None:
    end_s = time.monotonic() + timeout_s
    assert callable(condition)
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.002)


def test_from_many_plain_threads(parts: tuple[EngineLoop, Engine, ScriptedRunner]) -> None:
    loop, engine, _ = parts
    wrong: list[str] = []

    def ask(name: str) -> None:
        prompt = make_prompt(name, 9, 20)
        if tokens_of(collect(submit(loop, prompt))) != expected_tokens(prompt):
            wrong.append(name)

    threads = [threading.Thread(target=ask, args=(f"t{index}",)) for index in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert engine.scheduler.pool.num_held == 0
    stats = loop.stats()
    assert stats.counters["sequences_finished"] == 7
    assert (stats.num_running, stats.num_waiting) == (0, 0)


def test_it_sleeps_when_idle(parts: tuple[EngineLoop, Engine, ScriptedRunner]) -> None:
    loop, _, runner = parts
    collect(submit(loop, make_prompt("a")))
    num_steps, cpu_s = runner.num_steps, time.process_time()
    time.sleep(0.2)
    assert runner.num_steps == num_steps
    assert time.process_time() - cpu_s < 0.1


def test_asyncio_gets_one_call_a_step(parts: tuple[EngineLoop, Engine, ScriptedRunner]) -> None:
    loop, _, runner = parts

    async def main() -> int:
        event_loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Output] = asyncio.Queue()
        calls = 0
        original = event_loop.call_soon_threadsafe

        def counted(*args: object, **kwargs: object) -> object:
            nonlocal calls
            if threading.current_thread() is not threading.main_thread():
                calls += 1
            return original(*args, **kwargs)  # type: ignore[arg-type]

        event_loop.call_soon_threadsafe = counted  # type: ignore[method-assign,assignment]
        runner.gate.clear()
        for name in "abc":
            loop.submit(make_prompt(name, 3, 10), inbox.put_nowait, event_loop)
        runner.gate.set()
        num_last = 0
        while num_last < 3:
            num_last += (await inbox.get()).is_last
        return calls

    # The first may take a step alone before the others are in.
    assert asyncio.run(main()) <= 11


def test_abort_ends_within_a_step(parts: tuple[EngineLoop, Engine, ScriptedRunner]) -> None:
    loop, engine, runner = parts
    runner.gate.clear()
    outputs = submit(loop, make_prompt("long", 5, 1000))
    assert runner.at_gate.wait(10), "a step is under way"
    loop.abort("long")
    loop.abort("unknown")
    with pytest.raises(Refusal, match="in use"):
        submit(loop, make_prompt("long"))
    steps = runner.num_steps
    runner.gate.set()
    until(lambda: engine.scheduler.pool.num_held == 0)
    assert runner.num_steps <= steps + 2, "that one, and the one given ahead of its end"
    while not outputs.empty():
        assert not outputs.get().is_last
    until(lambda: sum(loop.stats().histograms["cancel_seconds"].counts) == 1)
    assert loop.stats().counters["sequences_aborted"] == 1
    collect(submit(loop, make_prompt("long")))


def test_abort_before_the_engine_saw_it(
    parts: tuple[EngineLoop, Engine, ScriptedRunner],
) -> None:
    loop, engine, runner = parts
    runner.gate.clear()
    first = submit(loop, make_prompt("a", 5, 3))
    outputs = submit(loop, make_prompt("b"))
    loop.abort("b")
    runner.gate.set()
    collect(first)
    until(lambda: not engine.has_work)
    assert outputs.empty()


def test_a_full_queue_is_429(parts: tuple[EngineLoop, Engine, ScriptedRunner]) -> None:
    loop, _, runner = parts
    runner.gate.clear()
    outputs = [submit(loop, make_prompt(f"r{index}", 3, 2)) for index in range(7)]
    with pytest.raises(Refusal) as caught:
        submit(loop, make_prompt("more"))
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    assert caught.value.retry_after_s >= 1
    runner.gate.set()
    for one in outputs:
        collect(one)
    collect(submit(loop, make_prompt("more")))
    # What no empty queue could hold is not to be tried again.
    with pytest.raises(Refusal) as caught:
        submit(loop, replace(make_prompt("many"), num_choices=8))
    assert (caught.value.status, caught.value.param) == (400, "n")
    submit(loop, replace(make_prompt("many"), num_choices=7))


def test_drain_finishes_running_and_queued(
    parts: tuple[EngineLoop, Engine, ScriptedRunner],
) -> None:
    loop, _, runner = parts
    runner.gate.clear()
    prompts = [make_prompt(f"r{index}", 3, 30) for index in range(7)]
    outputs = [submit(loop, prompt) for prompt in prompts]
    closing = threading.Thread(target=loop.close, args=(30.0,))
    closing.start()

    def is_refused() -> bool:
        try:
            submit(loop, make_prompt("late"))
        except Refusal as refusal:
            return refusal.status == 503
        return False

    until(is_refused)
    runner.gate.set()
    for prompt, one in zip(prompts, outputs, strict=True):
        assert tokens_of(collect(one)) == expected_tokens(prompt)
    closing.join(10)
    assert not closing.is_alive()
    assert runner.is_closed
    assert not loop.is_alive


def test_the_end_of_the_grace_time_is_an_error() -> None:
    engine, runner = make_engine(num_blocks=4000, max_num_seqs=1)
    loop = EngineLoop(engine)
    running = submit(loop, make_prompt("a", 5, 10_000))
    queued = submit(loop, make_prompt("b"))
    running.get(timeout=10)
    assert not loop.close(0.05)
    assert isinstance(collect(running)[-1].error, RequestFailed)
    assert isinstance(collect(queued)[-1].error, RequestFailed)
    assert runner.is_closed
    assert engine.scheduler.pool.num_held == 0


def test_a_fault_of_our_own_ends_everything_and_is_seen(
    parts: tuple[EngineLoop, Engine, ScriptedRunner], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, engine, _ = parts

    def broken() -> None:
        raise KeyError("bookkeeping")

    monkeypatch.setattr(engine.scheduler, "schedule", broken)
    assert isinstance(collect(submit(loop, make_prompt("a")))[-1].error, RequestFailed)
    until(lambda: not loop.is_alive)
    with pytest.raises(Refusal) as caught:
        submit(loop, make_prompt("b"))
    assert caught.value.status == 503
    assert not loop.stats().is_alive


def test_a_closed_event_loop_aborts_its_requests(
    parts: tuple[EngineLoop, Engine, ScriptedRunner],
) -> None:
    loop, engine, runner = parts
    runner.gate.clear()
    event_loop = asyncio.new_event_loop()
    loop.submit(make_prompt("a", 5, 1000), lambda _: None, event_loop)
    event_loop.close()
    runner.gate.set()
    until(lambda: loop.stats().counters["sequences_aborted"] == 1)
    assert engine.scheduler.pool.num_held == 0


def test_nothing_is_left_after_a_storm_of_aborts() -> None:
    engine, _ = make_engine(num_blocks=60, max_num_seqs=4)
    loop = EngineLoop(engine, max_num_waiting=40)
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    taken, refused = [0] * 4, []

    def ask_and_leave(worker: int) -> None:
        draw = random.Random(worker)  # noqa: S311 - any numbers will do
        for index in range(60):
            prompt = replace(
                make_prompt(f"{worker}-{index}", draw.randrange(1, 30), draw.randrange(1, 40)),
                num_choices=draw.choice((1, 1, 3)),
                cache_salt=draw.choice((None, b"tenant")),
            )
            try:
                loop.submit(prompt, outputs.put)
            except Refusal as refusal:
                refused.append(refusal.code)
                continue
            taken[worker] += prompt.num_choices
            time.sleep(draw.choice((0, 0, 0.0005, 0.003)))
            loop.abort(prompt.request_id, draw.choice((None, 0)))
            loop.abort(prompt.request_id)

    threads = [threading.Thread(target=ask_and_leave, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: not engine.has_work and not loop.stats().num_queued)
    assert set(refused) <= {"queue_full"}
    stats = loop.stats()
    loop.close()
    gauges = (stats.num_running, stats.num_waiting, stats.num_sequences, stats.num_open)
    assert gauges == (0, 0, 0, 0)
    assert stats.num_kv_blocks_used == 0
    assert stats.step_age_s == 0
    counters = stats.counters
    ended = ("sequences_finished", "sequences_aborted", "sequences_failed")
    assert sum(taken) == counters["sequences_submitted"] == sum(counters[one] for one in ended)
    assert counters["sequences_aborted"] > 0
    assert counters["sequences_failed"] == 0


def test_the_time_in_the_queue_is_that_until_the_first_step(
    parts: tuple[EngineLoop, Engine, ScriptedRunner],
) -> None:
    loop, _, runner = parts
    runner.gate.clear()
    outputs = [submit(loop, make_prompt(f"r{index}", 3, 2)) for index in range(5)]
    time.sleep(0.06)
    runner.gate.set()
    for one in outputs:
        collect(one)
    waited = loop.stats().histograms["queue_seconds"]
    assert sum(waited.counts) == 5
    assert 0.05 < waited.total < 5 * 0.5
    stats = loop.stats().histograms
    num_steps = loop.stats().counters["steps"]
    assert sum(stats["step_sequences"].counts) == num_steps
    assert stats["step_prefill_tokens"].total == 15
    assert stats["step_decode_tokens"].total == 5
