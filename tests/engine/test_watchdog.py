"""A step that does not return: its requests end, the rest waits, and the server goes on."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

import pytest
from engine.scripted_runner import expected_tokens, make_engine, make_prompt, tokens_of
from engine.test_loop import collect, submit, until
from stopped_clock import StoppedClock

from insitu.engine.loop import EngineLoop
from insitu.refusal import Refusal, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.scripted_runner import ScriptedRunner

    from insitu.engine.engine import Engine
    from insitu.engine.sequence import Output

LIMIT_S = 60.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    return StoppedClock(monkeypatch)


@pytest.fixture
def parts(clock: StoppedClock) -> Iterator[tuple[EngineLoop, Engine, ScriptedRunner]]:
    engine, runner = make_engine(num_blocks=100, max_num_seqs=2)
    runner.gate.clear()
    loop = EngineLoop(engine, step_timeout_s=LIMIT_S)
    yield loop, engine, runner
    runner.gate.set()
    loop.close()


def test_its_requests_end_and_what_waits_is_served_when_it_returns(
    parts: tuple[EngineLoop, Engine, ScriptedRunner], clock: StoppedClock
) -> None:
    loop, engine, runner = parts
    stuck = submit(loop, make_prompt("a", 9, 20))
    until(lambda: engine.in_step)
    waits = submit(loop, make_prompt("b"))
    assert not loop.stats().is_late
    clock.pass_s(LIMIT_S + 1)
    failed = collect(stuck)
    assert isinstance(failed[-1].error, RequestFailed)
    assert failed[-1].error.code == "step_timeout"
    stats = loop.stats()
    assert stats.is_late
    assert not stats.is_lost
    assert stats.is_alive
    assert stats.step_age_s > LIMIT_S
    assert stats.num_kv_blocks_used > 0
    assert waits.empty()
    with pytest.raises(Refusal) as caught:
        submit(loop, make_prompt("c"))
    assert (caught.value.status, caught.value.code) == (503, "step_timeout")
    assert caught.value.retry_after_s
    runner.gate.set()
    assert tokens_of(collect(waits)) == expected_tokens(make_prompt("b"))
    until(lambda: not engine.has_work)
    assert stuck.empty()
    until(lambda: loop.stats().counters["late_steps"] == 1)
    assert not loop.stats().is_late
    assert loop.stats().num_kv_blocks_used == 0
    # The id is free again, and so is the engine.
    assert tokens_of(collect(submit(loop, make_prompt("a")))) == expected_tokens(make_prompt("a"))


def test_after_twice_the_limit_everything_has_ended(
    parts: tuple[EngineLoop, Engine, ScriptedRunner], clock: StoppedClock
) -> None:
    loop, engine, runner = parts
    stuck = submit(loop, make_prompt("a"))
    until(lambda: engine.in_step)
    waits = submit(loop, make_prompt("b"))
    clock.pass_s(2 * LIMIT_S + 1)
    assert isinstance(collect(waits)[-1].error, RequestFailed)
    assert isinstance(collect(stuck)[-1].error, RequestFailed)
    assert loop.stats().is_lost
    assert loop.stats().num_open == 0
    runner.gate.set()
    until(lambda: not loop.stats().num_sequences)
    assert not loop.stats().is_lost
    assert loop.stats().num_kv_blocks_used == 0


def test_a_close_does_not_wait_for_a_step_that_is_late(
    parts: tuple[EngineLoop, Engine, ScriptedRunner], clock: StoppedClock
) -> None:
    loop, engine, _ = parts
    outputs: queue.SimpleQueue[Output] = queue.SimpleQueue()
    loop.submit(make_prompt("a"), outputs.put)
    until(lambda: engine.in_step)
    loop.submit(make_prompt("b"), outputs.put)
    closing = threading.Thread(target=loop.close)
    closing.start()
    clock.pass_s(LIMIT_S + 1)
    closing.join(30)
    assert not closing.is_alive()
    assert {collect(outputs)[-1].request_id, collect(outputs)[-1].request_id} == {"a", "b"}


def test_without_a_limit_nothing_is_late(clock: StoppedClock) -> None:
    engine, runner = make_engine()
    runner.gate.clear()
    loop = EngineLoop(engine, step_timeout_s=0)
    outputs = submit(loop, make_prompt("a"))
    until(lambda: engine.in_step)
    clock.pass_s(1e6)
    assert loop.stats().step_age_s == 1e6
    assert not loop.stats().is_late
    runner.gate.set()
    assert tokens_of(collect(outputs)) == expected_tokens(make_prompt("a"))
    loop.close()
