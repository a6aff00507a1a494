"""What a client that sends ``X-Insitu-Lenient: 1`` lets us leave out, and is told of.

Not here: deciding what is unknown or not supported (``schema``). Always true: without the header
nothing is left out; with it, every field left out is named in the answer's ``warnings``; a value
that is wrong is refused either way.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

HEADER = "x-insitu-lenient"
MAX_WARNINGS = 64


class Lenience:
    """What one request's body may leave out; ``names``: the caller's, of a chat's fields."""

    def __init__(self, *, is_on: bool = False, names: Mapping[str, str] | None = None) -> None:
        self.is_on = is_on
        self.warnings: list[str] = []
        self._names = names or {}

    def under(self, names: Mapping[str, str]) -> Lenience:
        """The same, for fields that the caller knows under other names."""
        other = Lenience(is_on=self.is_on, names=names)
        other.warnings = self.warnings
        return other

    def warn(self, text: str) -> None:
        """Tell the caller what was taken otherwise than written."""
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)

    def leave_out(self, refusal: Refusal) -> None:
        """Take a refusal as a warning, or raise it."""
        if not self.is_on or len(self.warnings) == MAX_WARNINGS:
            raise refusal
        self.warnings.append(f"Left out: {renamed(refusal, self._names).message}")


STRICT = Lenience()


def lenience_of(request: Request) -> Lenience:
    """What a request's header asks for."""
    values = request.headers.getlist(HEADER)
    if values not in ([], ["0"], ["1"]):
        raise Refusal("X-Insitu-Lenient must be 0 or 1.", param=HEADER, code="invalid_value")
    return Lenience(is_on=values == ["1"])


def renamed(refusal: Refusal, names: Mapping[str, str]) -> Refusal:
    """A refusal of a chat's field under the caller's name for it."""
    ours = re.split(r"[.\[]", refusal.param or "")[0]
    if ours in names:
        # What lies below has another form there.
        param = refusal.param or ""
        shown = param if param in refusal.message else ours
        message = refusal.message.replace(shown, names[ours], 1)
        refusal.param, refusal.message, refusal.args = names[ours], message, (message,)
    return refusal
