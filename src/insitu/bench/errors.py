"""What can be asked of a measurement and cannot be had; the message says what to change."""

from __future__ import annotations


class BenchError(Exception):
    """A measurement that cannot be made here; the message says what would help."""
