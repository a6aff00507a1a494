"""Who is being answered, and whether the server is going away.

Not here: signals or sockets (``run``). Always true: ``num_active`` counts requests between door and
last byte, and a feed in ``feeds`` can be stopped from here.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from insitu.server.errors import ShuttingDown

if TYPE_CHECKING:
    from collections.abc import Iterator

_POLL_S = 0.02
# What clients get, after the grace time, to take their error event in.
_FLUSH_S = 1.0


class Stoppable(Protocol):
    """An answer in the making that can be ended for a reason."""

    def stop(self, error: Exception) -> None:
        """End it now."""
        ...


class Lifecycle:
    """Counts requests and lets them finish before the end."""

    def __init__(self) -> None:
        self.is_draining = False
        self.num_active = 0
        self.feeds: set[Stoppable] = set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Hold the end off while a request is answered."""
        self.num_active += 1
        try:
            yield
        finally:
            self.num_active -= 1

    async def drain(self, grace_s: float) -> bool:
        """Refuse new work, wait for the rest; after the grace time end it with an error.

        Answers whether everything finished by itself.
        """
        self.is_draining = True
        if await self._wait(grace_s):
            return True
        for feed in list(self.feeds):
            feed.stop(ShuttingDown())
        await self._wait(_FLUSH_S)
        return False

    async def _wait(self, timeout_s: float) -> bool:
        end_s = asyncio.get_running_loop().time() + timeout_s
        while self.num_active:
            if asyncio.get_running_loop().time() >= end_s:
                return False
            await asyncio.sleep(_POLL_S)
        return True
