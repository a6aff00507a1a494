"""What a quantisation cannot be done with; the message says what to change."""

from __future__ import annotations


class QuantizeError(Exception):
    """A source, type or text that stands in the way of quantising."""
