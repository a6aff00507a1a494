"""A clock for the watchdog that stands still until a test moves it: no machine is slow by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.engine import watchdog

if TYPE_CHECKING:
    import pytest


class StoppedClock:
    """Seconds, as many as ``pass_s`` was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let watchdogs that are made from now on go by this clock."""
        self._now_s = 1000.0
        monkeypatch.setattr(watchdog, "monotonic", lambda: self._now_s)
        monkeypatch.setattr(watchdog, "_MAX_POLL_S", 0.005)

    def pass_s(self, seconds: float) -> None:
        """Be so much later."""
        self._now_s += seconds
