"""Who does not read: what is made for it is bounded, it holds no blocks, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from insitu.engine.sequence import Output
from insitu.llm import inbox
from insitu.llm.build import build
from insitu.llm.inbox import MAX_IN_A_ROW, Inbox
from insitu.sampling_params import SamplingParams
from insitu.types import Caller, Request

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from insitu.llm.text_generator import TextGenerator

FEW = 8
MAX_TOKENS = 60


async def texts(generator: TextGenerator, name: str, *, reads_late: bool = False) -> list[str]:
    sampling = SamplingParams(max_tokens=MAX_TOKENS, n=2, seed=3, ignore_eos=True)
    request = Request(name, "default", prompt=(5, 6, 7), sampling=sampling)
    stream = generator.stream(await generator.prepare(request), Caller())
    made = ["", ""]
    async for delta in stream:
        made[delta.index] += delta.content
        if reads_late:
            reads_late = False
            await paused(generator)
    return made


def keep_pace(generator: TextGenerator) -> None:
    """Have every step wait until the event loop took in what the ones before made."""
    engine, event_loop = generator._loop._engine, asyncio.get_running_loop()
    step = engine.step

    def after_the_loop() -> list[Output]:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), event_loop).result(20)
        return step()

    engine.step = after_the_loop  # type: ignore[method-assign]


async def paused(generator: TextGenerator) -> None:
    """Wait until nothing more is made for the one reader; check how much was."""
    async with asyncio.timeout(20):
        while (stats := generator.stats()).num_kv_blocks_used or stats.num_waiting != 2:
            await asyncio.sleep(0.002)
    num_sampled = stats.counters["sampled_tokens"]
    # Each choice: those unread, and one of each of the steps that were under way.
    assert FEW <= num_sampled <= FEW + 2 * 4
    assert (await texts(generator, "other"))[0], "the others go on"
    assert generator.stats().num_waiting == 2


def test_who_does_not_read_is_paused_and_goes_on_where_it_was(
    random_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MAX_UNREAD", FEW)

    async def both() -> tuple[list[str], list[str]]:
        keep_pace(generator)
        late = await texts(generator, "late", reads_late=True)
        return late, await texts(generator, "at once")

    generator = build(random_path, name="m", threads=1)
    try:
        late, at_once = asyncio.run(both())
    finally:
        generator.close()
    assert late == at_once


def test_an_inbox_pauses_once_and_resumes_when_empty() -> None:
    async def run() -> None:
        asked: list[bool] = []
        box = Inbox(asked.append)
        outputs = [Output(str(index)) for index in range(inbox.MAX_UNREAD + 2)]
        for output in outputs:
            box.put(output)
        assert asked == [True]
        others = asyncio.create_task(asyncio.sleep(0))
        for output in outputs[:MAX_IN_A_ROW]:
            assert await box.get() is output
        await asyncio.sleep(0)
        assert others.done()
        for output in outputs[MAX_IN_A_ROW:]:
            assert await box.get() is output
        assert asked == [True]
        reader = asyncio.create_task(box.get())
        await asyncio.sleep(0)
        assert asked == [True, False]
        box.put(outputs[0])
        assert await reader is outputs[0]

    asyncio.run(run())
