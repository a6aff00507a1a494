"""Progress on standard error: a bar on a terminal; of a pull, a line a phase elsewhere.

Not here: what is being done (``catalog``). rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class Bar:
    """One bar, reused for every phase; a ``catalog.progress.Progress`` and a context manager."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._drawn: Any = None
        self._task: Any = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Start a phase."""
        if self._is_quiet:
            return
        if not self._is_terminal:
            click.echo(label, err=True)
            return
        if self._drawn is None:
            self._drawn = _draw()
        if self._task is not None:
            self._drawn.remove_task(self._task)
        self._task = self._drawn.add_task(label, total=total_bytes)

    def at(self, done_bytes: int) -> None:
        """Move the bar."""
        if self._drawn is not None and self._task is not None:
            self._drawn.update(self._task, completed=done_bytes)

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        if self._is_quiet:
            return
        if self._drawn is not None:
            self._drawn.console.print(message, highlight=False, markup=False)
        else:
            click.echo(message, err=True)


def _draw() -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    ]
    drawn = Progress(*columns, console=Console(stderr=True), transient=True)
    drawn.start()
    return drawn


class Counting:
    """A bar of things done on a terminal's standard error, nothing elsewhere; a context."""

    def __init__(self) -> None:
        self._drawn: Any = None

    def __enter__(self) -> Callable[[str, int, int], None]:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._drawn = Progress(console=Console(stderr=True), transient=True)
            self._task = self._drawn.add_task("loading", total=None)
            self._drawn.start()
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._drawn is not None:
            self._drawn.stop()

    def _watch(self, what: str, done: int, total: int) -> None:
        if self._drawn is not None:
            self._drawn.update(self._task, description=what, completed=done, total=total)
