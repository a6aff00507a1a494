"""The gate: whether a tenant's request may run, and what it took when it is over.

Not here: what the limits are (``keys`` reads them, ``cli`` has the defaults). Always true: a ticket
is closed once, on success, refusal, error and disconnect alike; then it holds nothing any more.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from insitu.policy.limits import Account, Limits
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.policy.limits import Bucket
    from insitu.types import Caller, Request, Usage


class LimitGate:
    """Admits requests of tenants by their limits, counted by tenant and not by key."""

    def __init__(
        self,
        limits_of: Callable[[Caller], Limits],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` measures spans; ``wall`` is seconds since 1970, for days."""
        self._limits_of = limits_of
        self._clock, self._wall = clock, wall
        self._accounts: dict[str | None, Account] = {}

    def admit(self, request: Request, caller: Caller) -> LimitTicket:
        """A ticket, or a refusal that says when to try again."""
        limits = self._limits_of(caller)
        account = self._accounts.get(caller.tenant)
        if account is None:
            account = self._accounts[caller.tenant] = Account(limits, self._clock, self._wall)
        elif account.limits != limits:
            account.change(limits)
        most = limits.concurrent_requests
        if most is not None and account.num_open >= most:
            raise _refused(f"{most} requests at a time", "concurrent_requests", 1)
        if account.requests is not None:
            wait_s = account.requests.wait_s(1, self._clock())
            if wait_s > 0:
                message = f"{account.requests.capacity} requests a minute"
                raise _refused(message, "requests_per_minute", wait_s)
            account.requests.take(1, self._clock())
        return LimitTicket(account, self._clock)


class LimitTicket:
    """One request's place: it holds a request, and tokens from when their number is known."""

    def __init__(self, account: Account, clock: Callable[[], float]) -> None:
        self._account = account
        self._clock = clock
        self._num_reserved = 0
        self._is_open = True
        account.num_open += 1

    def reserve(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Set aside what the request may use, or refuse it; what it did not use is given back."""
        wanted = num_prompt_tokens + max_tokens
        whole = self._num_reserved + wanted
        account = self._account
        per_minute, per_day = account.limits.tokens_per_minute, account.limits.tokens_per_day
        for limit, span in ((per_minute, "minute"), (per_day, "day")):
            if limit is not None and whole > limit:
                message = (
                    f"The request may use {whole} tokens, but {limit} a {span} are allowed: "
                    "give a smaller max_tokens."
                )
                raise Refusal(message, param="max_tokens", code=f"tokens_per_{span}")
        left = account.left_of_day()
        if left is not None and wanted > left:
            wait_s = account.until_tomorrow_s()
            raise _refused(f"{per_day} tokens a day", "tokens_per_day", wait_s)
        if account.tokens is not None:
            wait_s = account.tokens.wait_s(wanted, self._clock())
            if wait_s > 0:
                raise _refused(f"{per_minute} tokens a minute", "tokens_per_minute", wait_s)
        account.take_tokens(wanted)
        self._num_reserved = whole

    def close(self, usage: Usage) -> None:
        """Settle: keep what was used, give back the rest."""
        if self._is_open:
            self._is_open = False
            self._account.num_open -= 1
            self._account.take_tokens(usage.total_tokens - self._num_reserved)

    def headers(self) -> dict[str, str]:
        """What is left, in the words of OpenAI's headers."""
        account = self._account
        answer = {
            **self._of_bucket("requests", account.requests),
            **self._of_bucket("tokens", account.tokens),
        }
        left = account.left_of_day()
        if left is not None:
            answer["x-ratelimit-limit-tokens-day"] = str(account.limits.tokens_per_day)
            answer["x-ratelimit-remaining-tokens-day"] = str(left)
        return answer

    def _of_bucket(self, name: str, bucket: Bucket | None) -> dict[str, str]:
        if bucket is None:
            return {}
        now_s = self._clock()
        return {
            f"x-ratelimit-limit-{name}": str(bucket.capacity),
            f"x-ratelimit-remaining-{name}": str(bucket.left(now_s)),
            f"x-ratelimit-reset-{name}": f"{bucket.full_in_s(now_s):.3f}s",
        }


def _refused(allowed: str, code: str, wait_s: float) -> Refusal:
    return Refusal(
        f"{allowed} are allowed, and there are as many. Try again later.",
        code=code,
        status=429,
        kind="rate_limit_error",
        retry_after_s=max(1, math.ceil(wait_s)),
    )
