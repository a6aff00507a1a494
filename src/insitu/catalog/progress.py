"""How a pull tells what it is doing: a protocol, and the form that says nothing.

Not here: the terminal's progress bar (the command line draws it).
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told of phases and bytes; never decides anything."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """A new phase starts; the total is None where nobody knows it."""
        ...

    def at(self, done_bytes: int) -> None:
        """So many bytes of the phase are done."""
        ...

    def note(self, message: str) -> None:
        """Something worth one line."""
        ...


class Silent:
    """Says nothing."""

    def begin(self, label: str, total_bytes: int | None) -> None:
        """Say nothing."""

    def at(self, done_bytes: int) -> None:
        """Say nothing."""

    def note(self, message: str) -> None:
        """Say nothing."""
