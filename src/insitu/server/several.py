"""Several prompts of one request, run side by side as if they were choices of one.

Always true: prompt ``p`` of a request for ``n`` choices has the choices ``p*n`` to ``p*n + n - 1``;
closing the iterator closes every stream it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.server.feed import end_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from insitu.types import Delta


async def side_by_side(
    streams: Sequence[AsyncIterator[Delta]], num_choices: int, num_at_a_time: int | None = None
) -> AsyncIterator[Delta]:
    """The deltas of all streams as they come; the first failure ends them all.

    With ``num_at_a_time`` a stream begins when one of so many before it has ended.
    """
    places = contextlib.nullcontext() if num_at_a_time is None else asyncio.Semaphore(num_at_a_time)
    arrived: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()

    async def pump(place: int, stream: AsyncIterator[Delta]) -> None:
        try:
            async with places:
                async for delta in stream:
                    arrived.put_nowait(replace(delta, index=place * num_choices + delta.index))
        except Exception as error:
            arrived.put_nowait(error)
        else:
            arrived.put_nowait(None)

    tasks = [asyncio.create_task(pump(place, one)) for place, one in enumerate(streams)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await arrived.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        await _close(tasks, streams)


async def _close(
    tasks: Sequence[asyncio.Task[None]], streams: Sequence[AsyncIterator[Delta]]
) -> None:
    await end_all(tasks)
    for stream in streams:
        if (aclose := getattr(stream, "aclose", None)) is not None:
            await aclose()
