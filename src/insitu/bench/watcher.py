"""Who is told how far a measurement has come."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Draws progress, or nothing."""

    def __call__(self, what: str, done: int, total: int, /) -> None:
        """``done`` of ``total`` are measured, ``what`` is next."""
        ...
