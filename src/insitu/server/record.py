"""What is known about one HTTP request: enough to count it and to write its log line.

Not here: prompts, answers or keys; a record could not hold them. Always true: an outcome is given
once, what was cancelled has a cause and stays cancelled whatever status follows.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from insitu.refusal import RequestFailed
from insitu.server.errors import ClientGone, ShuttingDown
from insitu.types import Caller, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

    from insitu.server.body import BodyAccount
    from insitu.types import Delta, Ticket

SCOPE_KEY = "insitu.record"
# Who asks, where the server itself does for them; no client can put anything into a scope.
CALLER_KEY = "insitu.caller"
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

logger = logging.getLogger("insitu.access")


class Meter(Protocol):
    """Where a request's times and tokens are counted."""

    def note_prompt(self, num_tokens: int) -> None:
        """A request's prompts were computed, the first of them at least."""
        ...

    def note_first_token(self, ttft_s: float) -> None:
        """A request's first token came."""
        ...

    def note_gap(self, gap_s: float) -> None:
        """Another delta with tokens came."""
        ...

    def note_tokens(self, num_tokens: int) -> None:
        """Tokens were generated."""
        ...


class Outcome(StrEnum):
    """How a request ended; each ends in exactly one of these ways."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    REFUSED = "refused"


class Cause(StrEnum):
    """Why a request was cancelled: its client left, its time was over, or the server's was."""

    DISCONNECT = "disconnect"
    TIMEOUT = "timeout"
    DRAIN = "drain"


@dataclass(slots=True)
class ChoiceRecord:
    """How far one choice of a request has come."""

    num_tokens: int = 0
    last_delta_s: float | None = None


@dataclass(slots=True)
class Record:
    """One request as it goes."""

    request_id: str
    method: str
    route: str
    metrics: Meter
    started_s: float = field(default_factory=time.perf_counter)
    caller: Caller = field(default_factory=Caller)
    generation_id: str | None = None
    model: str | None = None
    status: int | None = None
    outcome: Outcome | None = None
    cause: Cause | None = None
    timeout_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    ttft_s: float | None = None
    last_delta_s: float | None = None
    finish_reason: str | None = None
    choices: dict[int, ChoiceRecord] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    ticket: Ticket | None = None
    names: Mapping[str, str] = field(default_factory=dict)  # the caller's, of our fields
    body: BodyAccount | None = None

    def note_delta(self, delta: Delta) -> None:
        """Take in what a choice gained: times, tokens, how it finished."""
        now_s = time.perf_counter()
        num_tokens = len(delta.token_ids)
        if self.last_delta_s is None:
            self.ttft_s = now_s - self.started_s
            self.metrics.note_prompt(self.prompt_tokens or 0)
            if delta.vector is None:
                self.metrics.note_first_token(self.ttft_s)
        choice = self.choices.setdefault(delta.index, ChoiceRecord())
        if choice.last_delta_s is not None and num_tokens:
            self.metrics.note_gap(now_s - choice.last_delta_s)
        self.last_delta_s = choice.last_delta_s = now_s
        if delta.usage is not None:
            num_tokens = max(0, delta.usage.completion_tokens - choice.num_tokens)
            self.cached_tokens += delta.usage.cached_tokens
            self.reasoning_tokens += delta.usage.reasoning_tokens
        choice.num_tokens += num_tokens
        self.completion_tokens += num_tokens
        self.metrics.note_tokens(num_tokens)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason.value

    def note_error(self, error: Exception) -> None:
        """Take in what ended the request early; the first error stands."""
        if self.outcome is None and (cause := _cause_of(error)) is not None:
            self.cancel(cause)
        elif self.outcome is None and isinstance(error, RequestFailed):
            self.outcome = Outcome.FAILED

    def cancel(self, cause: Cause) -> None:
        """The request is over without its answer; the first cause stands."""
        if self.outcome is None:
            self.outcome, self.cause = Outcome.CANCELLED, cause

    def settle(self) -> Outcome:
        """Give the outcome that follows from the status, unless one was given."""
        if self.outcome is None:
            if self.status is None or self.status == 500:
                self.outcome = Outcome.FAILED
            elif self.status >= 400:
                self.outcome = Outcome.REFUSED
            else:
                self.outcome = Outcome.COMPLETED
        return self.outcome

    def let_body_go(self) -> None:
        """What was asked has become ids, or never will."""
        if self.body is not None:
            self.body.close()

    def close_ticket(self) -> None:
        """Settle what the request was admitted for: a prompt counts once its first token came."""
        if self.ticket is not None:
            prompt_tokens = 0 if self.ttft_s is None else self.prompt_tokens or 0
            self.ticket.close(Usage(prompt_tokens, self.completion_tokens))

    @property
    def duration_s(self) -> float:
        """Seconds since the request came in."""
        return time.perf_counter() - self.started_s

    def write_log(self) -> None:
        """Write the request's one line."""
        if not logger.isEnabledFor(logging.INFO):
            return
        line = {
            "request_id": self.request_id,
            "generation_id": self.generation_id,
            "method": self.method,
            "route": self.route,
            "model": self.model,
            "status": self.status,
            "outcome": self.outcome,
            "cause": self.cause,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 6),
            "duration_s": round(self.duration_s, 6),
            "finish_reason": self.finish_reason,
            "tenant": self.caller.tenant,
        }
        logger.info("%s", json.dumps(line, separators=(",", ":")))


def _cause_of(error: Exception) -> Cause | None:
    if isinstance(error, ClientGone):
        return Cause.DISCONNECT
    if isinstance(error, ShuttingDown):
        return Cause.DRAIN
    if isinstance(error, RequestFailed) and error.code == "request_timeout":
        return Cause.TIMEOUT
    return None


def request_id_from(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's own request id where it is harmless, else a drawn one."""
    for name, value in headers:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            if _SAFE_ID.fullmatch(text):
                return text
    return f"req_{secrets.token_hex(12)}"


def record_of(scope: Scope) -> Record:
    """The record that the door opened for this request."""
    record = scope[SCOPE_KEY]
    assert isinstance(record, Record)
    return record
