"""Notice a turn of the engine's thread that does not end.

A native step cannot be interrupted, so nothing here stops one: who waits for it is told, and the
rest goes on when it returns.

Not here: what is done about it (``loop``).

Always true: ``is_late`` and ``is_lost`` say how things stand now and need no reset; ``on_late`` is
called at most once a turn for each of the two.
"""

from __future__ import annotations

import logging
import threading
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("insitu.engine")

# A turn this many times longer than the limit is not expected to end any more.
LOST_LIMITS = 2
_MAX_POLL_S = 1.0
_POLLS_A_LIMIT = 8


class Watchdog:
    """Measures turns against ``limit_s`` (0: no limit) from a thread of its own."""

    def __init__(self, limit_s: float, on_late: Callable[[bool], None]) -> None:
        self._limit_s = limit_s
        self._on_late = on_late
        self._began_s: float | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="insitu-watchdog", daemon=True)
        if limit_s > 0:
            self._thread.start()

    @property
    def age_s(self) -> float:
        """Seconds since the turn that runs began; 0 while there is none."""
        began_s = self._began_s
        return 0.0 if began_s is None else monotonic() - began_s

    @property
    def is_late(self) -> bool:
        """Whether the turn that runs has taken longer than the limit."""
        return 0 < self._limit_s < self.age_s

    @property
    def is_lost(self) -> bool:
        """Whether it has taken so long that only a restart is left."""
        return 0 < LOST_LIMITS * self._limit_s < self.age_s

    def begin(self) -> None:
        """A turn begins."""
        self._began_s = monotonic()

    def end(self) -> bool:
        """The turn ended: whether it was late."""
        was_late = self.is_late
        self._began_s = None
        if was_late:
            logger.error("a step came back late; what waits goes on")
        return was_late

    def close(self) -> None:
        """Stop watching; its thread has ended then, unless it is what calls."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _watch(self) -> None:
        poll_s = min(_MAX_POLL_S, self._limit_s / _POLLS_A_LIMIT)
        told: tuple[float | None, bool] = (None, False)
        while not self._closed.wait(poll_s):
            state = (self._began_s, self.is_lost)
            if self.is_late and state != told:
                told = state
                logger.error("a step has not returned for %.0f s", self.age_s)
                self._on_late(state[1])
