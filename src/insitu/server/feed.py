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


class Feed:
    """Takes deltas in as fast as they are made; hands them on as fast as the client reads."""

    def __init__(self, deltas: AsyncIterator[Delta], record: Record, lifecycle: Lifecycle) -> None:
        self._deltas = deltas
        self._record = record
        self._lifecycle = lifecycle
        self._ready: list[Delta] = []
        self._error: Exception | None = None
        self._is_over = False
        self._wake = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()

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
        """End the request now, for this reason; the first reason stands."""
        if not self._is_over:
            self._error, self._is_over = error, True
            self._wake.set()

    async def settle(self, timeout_s: float) -> None:
        """Wait a little for the first delta, so that an early refusal still has its status."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        if self._error is not None and not self._ready:
            raise self._error

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
        if self._error is not None:
            raise self._error

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
