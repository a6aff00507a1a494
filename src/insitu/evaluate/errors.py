"""What can be asked of an evaluation and cannot be had; the message says what to change."""

from __future__ import annotations


class EvaluateError(Exception):
    """An evaluation that cannot be made: which model, text or number stands in its way."""
