"""Deltas of one request as they come, with everything that can end them.

Not here: their form on the wire (``answer``). Always true: the generator's iterator is closed
exactly once, which aborts what still runs; what was ready together is handed on together.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from insitu.server.errors import ClientGone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive

    from insitu.server.lifecycle import Lifecycle
    from insitu.server.record import Record
    from insitu.types import Delta

# What a client gets to take in how its request was ended.
_FLUSH_S = 5.0


class Feed:
    """Takes deltas in as fast as they are made; hands them on as fast as the client reads."""

    def __init__(self, deltas: AsyncIterator[Delta], record: Record, lifecycle: Lifecycle) -> None:
        self._deltas = deltas
        self._record = record
        self._lifecycle = lifecycle
        self._ready: list[Delta] = []
        self.error: Exception | None = None
        self._is_over = False
        self._wake = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._flush: asyncio.Timeout | None = None

    def open(self, receive: Receive) -> None:
        """Begin to run the request, watching for the client's disconnect."""
        self._tasks = (
            asyncio.create_task(self._pump()),
            asyncio.create_task(self._watch(receive)),
        )
        self._lifecycle.feeds.add(self)

    async def _pump(self) -> None:
        try:
            async for delta in self._deltas:
                self._record.note_delta(delta)
                self._ready.append(delta)
                self._wake.set()
        except Exception as error:
            self.stop(error)
        else:
            self._is_over = True
            self._wake.set()

    async def _watch(self, receive: Receive) -> None:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.stop(ClientGone())
                return

    def stop(self, error: Exception) -> None:
        """End the request now, for this reason; the first reason stands.

        It is aborted at once, even where a client that does not read holds up what was ready.
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
        if self.error is not None and not self._ready:
            raise self.error

    async def batches(self) -> AsyncIterator[list[Delta]]:
        """Yield all that is ready, as often as something is; raise what ended it early."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._ready = self._ready, []
            if batch:
                yield batch
            if self._is_over and not self._ready:
                break
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        """Abort what still runs and let go of everything."""
        self._lifecycle.feeds.discard(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        aclose = getattr(self._deltas, "aclose", None)
        if aclose is not None:
            with contextlib.suppress(Exception):
                await aclose()
