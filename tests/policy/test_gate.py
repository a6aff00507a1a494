"""The gate by a clock of its own: what is admitted, what is refused until when, what is left."""

from __future__ import annotations

import pytest

from insitu.policy.gate import LimitGate
from insitu.policy.limits import Limits
from insitu.refusal import Refusal
from insitu.types import Caller, Request, Usage

ALICE, BOB = Caller("alice"), Caller("bob")
ASKED = Request("r", "m", prompt="x")
NOTHING = Usage(0, 0)


class Times:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def gate_with(times: Times, **limits: int) -> LimitGate:
    return LimitGate(lambda _: Limits(**limits), clock=times, wall=lambda: 1000 + times.now_s)


def refused(gate: LimitGate, caller: Caller = ALICE) -> Refusal:
    with pytest.raises(Refusal) as caught:
        gate.admit(ASKED, caller)
    assert caught.value.status == 429
    return caught.value


def test_requests_fill_up_evenly_and_each_tenant_has_its_own() -> None:
    times = Times()
    gate = gate_with(times, requests_per_minute=2)
    for _ in range(2):
        gate.admit(ASKED, ALICE).close(NOTHING)
    refusal = refused(gate)
    assert (refusal.code, refusal.retry_after_s) == ("requests_per_minute", 30)
    gate.admit(ASKED, BOB)
    times.now_s = 29.9
    refused(gate)
    times.now_s = 30.0
    gate.admit(ASKED, ALICE)
    refused(gate)
    times.now_s = 10_000.0  # never more than a minute's
    for _ in range(2):
        gate.admit(ASKED, ALICE)
    refused(gate)


def test_requests_at_a_time_are_freed_once_by_closing() -> None:
    gate = gate_with(Times(), concurrent_requests=1)
    ticket = gate.admit(ASKED, ALICE)
    assert refused(gate).code == "concurrent_requests"
    ticket.close(NOTHING)
    ticket.close(NOTHING)
    gate.admit(ASKED, ALICE)
    refused(gate)


def test_reserved_tokens_are_settled_with_what_was_used() -> None:
    times = Times()
    gate = gate_with(times, tokens_per_minute=100)
    first = gate.admit(ASKED, ALICE)
    first.reserve(10, 60)
    second = gate.admit(ASKED, ALICE)
    with pytest.raises(Refusal) as caught:
        second.reserve(10, 60)
    assert (caught.value.code, caught.value.retry_after_s) == ("tokens_per_minute", 24)
    second.close(NOTHING)
    first.close(Usage(10, 5))
    first.close(Usage(10, 50))
    third = gate.admit(ASKED, ALICE)
    assert third.headers()["x-ratelimit-remaining-tokens"] == "85"
    third.reserve(25, 60)
    assert third.headers()["x-ratelimit-remaining-tokens"] == "0"
    assert third.headers()["x-ratelimit-reset-tokens"] == "60.000s"


def test_what_can_never_run_is_told_so_and_not_to_wait() -> None:
    ticket = gate_with(Times(), tokens_per_minute=100).admit(ASKED, ALICE)
    with pytest.raises(Refusal) as caught:
        ticket.reserve(50, 51)
    refusal = caught.value
    assert (refusal.status, refusal.param, refusal.retry_after_s) == (400, "max_tokens", None)


def test_several_prompts_of_one_request_add_up() -> None:
    ticket = gate_with(Times(), tokens_per_minute=100).admit(ASKED, ALICE)
    ticket.reserve(10, 30)
    ticket.reserve(10, 30)
    with pytest.raises(Refusal) as caught:
        ticket.reserve(10, 30)
    assert caught.value.status == 400
    ticket.close(Usage(20, 30))
    assert ticket.headers()["x-ratelimit-remaining-tokens"] == "50"


def test_a_days_tokens_come_back_at_midnight_utc() -> None:
    times = Times()
    gate = gate_with(times, tokens_per_day=100)
    ticket = gate.admit(ASKED, ALICE)
    ticket.reserve(40, 50)
    ticket.close(Usage(40, 50, reasoning_tokens=30))
    again = gate.admit(ASKED, ALICE)
    with pytest.raises(Refusal) as caught:
        again.reserve(5, 6)
    assert (caught.value.code, caught.value.retry_after_s) == ("tokens_per_day", 86_400 - 1000)
    again.reserve(5, 5)
    again.close(NOTHING)
    assert again.headers()["x-ratelimit-remaining-tokens-day"] == "10"
    times.now_s = 86_400.0 - 1000
    assert again.headers()["x-ratelimit-remaining-tokens-day"] == "100"


def test_other_limits_hold_from_the_next_request_on() -> None:
    limits = Limits(requests_per_minute=1)
    gate = LimitGate(lambda _: limits, clock=Times(), wall=Times())
    gate.admit(ASKED, ALICE)
    refused(gate)
    limits = Limits(requests_per_minute=3)
    for _ in range(3):
        gate.admit(ASKED, ALICE)
    refused(gate)
