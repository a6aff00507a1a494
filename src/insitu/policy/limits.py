"""How much one tenant may ask for, and what of it is left.

Not here: who asks (``keys``) or HTTP (``server``). Always true: what was reserved is settled once;
what is taken is never more than there is, whatever the clock does. Counts live in memory: a server
that starts again begins anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Limits:
    """A tenant's limits; None is none. Tokens are those of prompts and answers, reasoning too."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None

    def over(self, defaults: Limits) -> Limits:
        """These, and the others' where these say nothing."""
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {name: value for name, value in named.items() if value is not None}
        return Limits(**{one.name: getattr(defaults, one.name) for one in fields(self)} | given)


class Bucket:
    """So many a minute: full at first, and filling evenly."""

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.capacity = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def _fill(self, now_s: float) -> None:
        gained = max(0.0, now_s - self._at_s) * self.capacity / 60
        self._level = min(self.capacity, self._level + gained)
        self._at_s = now_s

    def wait_s(self, amount: int, now_s: float) -> float:
        """How long until so much is there; 0 when it is."""
        self._fill(now_s)
        return max(0.0, (amount - self._level) * 60 / self.capacity)

    def take(self, amount: float, now_s: float) -> None:
        """Take what is there, or give back a part of it (below 0)."""
        self._fill(now_s)
        self._level = min(self.capacity, self._level - amount)

    def left(self, now_s: float) -> int:
        """What is there, whole ones."""
        self._fill(now_s)
        return max(0, math.floor(self._level))

    def full_in_s(self, now_s: float) -> float:
        """How long until nothing is missing."""
        return self.wait_s(self.capacity, now_s)


class Account:
    """What one tenant holds at the moment."""

    def __init__(self, limits: Limits, clock: Callable[[], float], wall: Callable[[], float]):
        self.limits = limits
        self._clock, self._wall = clock, wall
        now_s = clock()
        self.requests = _bucket(limits.requests_per_minute, now_s)
        self.tokens = _bucket(limits.tokens_per_minute, now_s)
        self.num_open = 0
        self._day = self._today()
        self._num_of_day = 0

    def change(self, limits: Limits) -> None:
        """Other limits from now on; what was used of the old ones is forgotten, not the day."""
        now_s = self._clock()
        self.limits = limits
        self.requests = _bucket(limits.requests_per_minute, now_s)
        self.tokens = _bucket(limits.tokens_per_minute, now_s)

    def _today(self) -> int:
        return int(self._wall() // _DAY_S)

    def left_of_day(self) -> int | None:
        """Tokens that are left today; None where there is no limit."""
        if self._today() != self._day:
            self._day, self._num_of_day = self._today(), 0
        limit = self.limits.tokens_per_day
        return None if limit is None else max(0, limit - self._num_of_day)

    def take_tokens(self, amount: int) -> None:
        """Count tokens, or uncount them (below 0)."""
        self.left_of_day()
        self._num_of_day = max(0, self._num_of_day + amount)
        if self.tokens is not None:
            self.tokens.take(amount, self._clock())

    def until_tomorrow_s(self) -> float:
        """How long today lasts, in UTC."""
        return _DAY_S - self._wall() % _DAY_S


def _bucket(per_minute: int | None, now_s: float) -> Bucket | None:
    return None if per_minute is None else Bucket(per_minute, now_s)
