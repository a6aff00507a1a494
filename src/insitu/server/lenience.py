"""What a client that sends ``X-Insitu-Lenient: 1`` lets us leave out, and is told of.

Not here: deciding what is unknown or not supported (``schema``). Always true: without the header
nothing is left out; with it, every field left out is named in the answer's ``warnings``; a value
that is wrong is refused either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.refusal import Refusal

if TYPE_CHECKING:
    from starlette.requests import Request

HEADER = "x-insitu-lenient"
MAX_WARNINGS = 64


class Lenience:
    """What one request's body may leave out."""

    def __init__(self, *, is_on: bool = False) -> None:
        self.is_on = is_on
        self.warnings: list[str] = []

    def leave_out(self, refusal: Refusal) -> None:
        """Take a refusal as a warning, or raise it."""
        if not self.is_on or len(self.warnings) == MAX_WARNINGS:
            raise refusal
        self.warnings.append(f"Left out: {refusal.message}")


STRICT = Lenience()


def lenience_of(request: Request) -> Lenience:
    """What a request's header asks for."""
    values = request.headers.getlist(HEADER)
    if values not in ([], ["0"], ["1"]):
        raise Refusal("X-Insitu-Lenient must be 0 or 1.", param=HEADER, code="invalid_value")
    return Lenience(is_on=values == ["1"])
