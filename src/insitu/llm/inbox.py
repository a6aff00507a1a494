"""Outputs of one request on their way from the engine to whoever reads them.

Not here: their text (``answer``). Always true: where nobody reads, the request is paused once
``MAX_UNREAD`` outputs wait, and after that only those of the steps under way come.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.engine.sequence import Output

# Tokens made ahead of a reader. A longer pause costs its prompt and answer so far once more.
MAX_UNREAD = 256
# So many that wait are read before the event loop's other tasks have their turn.
MAX_IN_A_ROW = 16


class Inbox:
    """A queue that pauses what fills it; used in one event loop."""

    def __init__(self, pause: Callable[[bool], None]) -> None:
        self._pause = pause
        self._outputs: deque[Output] = deque()
        self._is_paused = False
        self._num_in_a_row = 0
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: Output) -> None:
        """Take an output in."""
        self._outputs.append(output)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
        elif len(self._outputs) >= MAX_UNREAD and not self._is_paused:
            self._is_paused = True
            self._pause(True)

    async def get(self) -> Output:
        """The next output, once there is one."""
        while not self._outputs:
            if self._is_paused:
                self._is_paused = False
                self._pause(False)
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        self._num_in_a_row += 1
        if self._num_in_a_row % MAX_IN_A_ROW == 0:
            await asyncio.sleep(0)
        return self._outputs.popleft()
