"""Deltas of one request as they come, with everything that can end them.

Not here: their form on the wire (``answer``). Always true: the generator's iterator is closed
exactly once, which aborts what still runs; a delta is taken from it once the one before was taken
on, so that what a client does not read is not made either.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from insitu.refusal import request_timed_out
from insitu.server.errors import ClientGone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from starlette.types import Receive

    from insitu.server.lifecycle import Lifecycle
    from insitu.server.record import Record
    from insitu.types import Delta

# What a client gets to take in how its request was ended.
_FLUSH_S = 5.0


class Feed:
    """Takes deltas in as fast as somebody takes them on."""

    def __init__(self, deltas: AsyncIterator[Delta], record: Record, lifecycle: Lifecycle) -> None:
        self._deltas = deltas
        self._record = record
        self._lifecycle = lifecycle
        self.error: Exception | None = None
        self._is_over = False
        self._has_begun = False
        self._wake = asyncio.Event()
        self._taker: asyncio.Future[Callable[[Delta], Awaitable[None]]] = (
            asyncio.get_running_loop().create_future()
        )
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._flush: asyncio.Timeout | None = None
        self._timer: asyncio.TimerHandle | None = None

    def open(self, receive: Receive) -> None:
        """Begin to run the request, watching for the client's disconnect."""
        self._tasks = (
            asyncio.create_task(self._pump()),
            asyncio.create_task(self._watch(receive)),
        )
        self._lifecycle.feeds.add(self)
        timeout_s = self._record.timeout_s
        if timeout_s is not None:
            left_s = timeout_s - self._record.duration_s
            expired = request_timed_out(timeout_s)
            # The generator's own timer cannot reach a feed whose client does not read.
            self._timer = asyncio.get_running_loop().call_later(left_s, self.stop, expired)

    async def _pump(self) -> None:
        try:
            async for delta in self._deltas:
                self._record.note_delta(delta)
                self._has_begun = True
                self._wake.set()
                take = await self._taker
                await take(delta)
        except Exception as error:
            self.stop(error)
        else:
            self._is_over = True
            self._wake.set()
        finally:
            await self._abort()

    async def _abort(self) -> None:
        aclose = getattr(self._deltas, "aclose", None)
        if aclose is not None:
            with contextlib.suppress(Exception):
                await aclose()

    async def _watch(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.stop(ClientGone())
                return

    def stop(self, error: Exception) -> None:
        """End the request now, for this reason; the first reason stands.

        It is aborted at once, even where a client does not read what was made.
        """
        if not self._is_over:
            self.error, self._is_over = error, True
            self._wake.set()
            pump = self._tasks[0] if self._tasks else None
            if pump is not None and pump is not asyncio.current_task():
                pump.cancel()
            self._limit_flush()

    def flush_within(self, limit: asyncio.Timeout) -> None:
        """Let ``limit`` run from when the request is stopped: a client may not read for ever."""
        self._flush = limit
        self._limit_flush()

    def _limit_flush(self) -> None:
        if self._flush is not None and self.error is not None:
            self._flush.reschedule(asyncio.get_running_loop().time() + _FLUSH_S)

    async def settle(self, timeout_s: float) -> None:
        """Wait a little for the first delta, so that an early refusal still has its status."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        if self.error is not None and not self._has_begun:
            raise self.error

    async def hand_on(self, take: Callable[[Delta], Awaitable[None]]) -> None:
        """Have every delta taken on as it comes; raise what ended it early."""
        if not self._taker.done():
            self._taker.set_result(take)
        while not self._is_over:
            self._wake.clear()
            await self._wake.wait()
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Abort what still runs and let go of everything."""
        self._lifecycle.feeds.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        await end_all(self._tasks)
        await self._abort()


async def end_all(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait until they have ended.

    Unlike ``gather``, which answers with the tasks' own, this lets a cancellation of the caller
    through as it came: a scope that cancelled it knows it again.
    """
    for task in tasks:
        task.cancel()
    if tasks:
        ended, _ = await asyncio.wait(tasks)
        for task in ended:
            if not task.cancelled():
                task.exception()  # taken note of
