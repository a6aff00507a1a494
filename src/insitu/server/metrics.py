"""Prometheus metrics: what the server saw, and the engine's own counters.

Not here: counting inside the engine (``engine/stats``), its series' names (``engine_series``).
Always true: for every route received = completed + cancelled + failed + refused once idle, and a
scrape changes nothing. Prompt tokens count when the first token arrives (the prompt was computed
then); completion tokens as delivered to this room, those of cancelled requests included.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

from insitu.server.engine_series import EngineCollector
from insitu.server.record import Cause, Outcome
from insitu.types import FinishReason

if TYPE_CHECKING:
    from insitu.server.lifecycle import Lifecycle
    from insitu.server.record import Record
    from insitu.types import Generator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1, 2.5)
_TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
_DURATION_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Metrics:
    """All series of one server, in a registry of its own."""

    def __init__(self, generator: Generator, lifecycle: Lifecycle) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._make_counters()
        self._make_histograms()
        active = Gauge(
            "insitu_http_requests_active",
            "Requests for work between the door and their last byte.",
            registry=self._registry,
        )
        active.set_function(lambda: lifecycle.num_active)
        self._registry.register(EngineCollector(generator))

    def _make_counters(self) -> None:
        counter = partial(Counter, registry=self._registry)
        self._received = counter("insitu_requests_received", "Requests received.", ("route",))
        self._ended = counter(
            "insitu_requests", "Requests ended, by outcome.", ("route", "outcome")
        )
        self._success = counter(
            "insitu_request_success",
            "Requests completed, by how their last choice finished.",
            ("finished_reason",),
        )
        self._cancelled = counter(
            "insitu_requests_cancelled", "Requests cancelled, by cause.", ("cause",)
        )
        self._prompt_tokens = counter("insitu_prompt_tokens", "Prompt tokens of started requests.")
        self._generation_tokens = counter(
            "insitu_generation_tokens", "Tokens generated and delivered."
        )
        for reason in FinishReason:
            self._success.labels(reason.value)
        for cause in Cause:
            self._cancelled.labels(cause.value)

    def _make_histograms(self) -> None:
        histogram = partial(Histogram, registry=self._registry)
        self._ttft = histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_TTFT_BOUNDS_S,
        )
        self._gap = histogram(
            "insitu_inter_token_latency_seconds",
            "Between deltas of one request that carry tokens.",
            buckets=_GAP_BOUNDS_S,
        )
        self._tpot = histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time a token after the first, of completed requests.",
            buckets=_GAP_BOUNDS_S,
        )
        self._duration = histogram(
            "gen_ai_server_request_duration_seconds",
            "From arrival to last byte, by outcome.",
            ("outcome",),
            buckets=_DURATION_BOUNDS_S,
        )
        for outcome in Outcome:
            self._duration.labels(outcome.value)

    def note_prompt(self, num_tokens: int) -> None:
        """A request's prompts were computed, the first of them at least."""
        self._prompt_tokens.inc(num_tokens)

    def note_first_token(self, ttft_s: float) -> None:
        """A request's first token came."""
        self._ttft.observe(ttft_s)

    def note_gap(self, gap_s: float) -> None:
        """Another delta with tokens came."""
        self._gap.observe(gap_s)

    def note_tokens(self, num_tokens: int) -> None:
        """Tokens were generated."""
        self._generation_tokens.inc(num_tokens)

    def note_received(self, route: str) -> None:
        """A request for a generation came in."""
        self._received.labels(route).inc()

    def note_ended(self, record: Record) -> None:
        """A request for a generation ended, one way or another."""
        outcome = record.settle()
        self._ended.labels(record.route, outcome.value).inc()
        if outcome is Outcome.COMPLETED and record.finish_reason is not None:
            self._success.labels(record.finish_reason).inc()
        if record.cause is not None:
            self._cancelled.labels(record.cause.value).inc()
        self._duration.labels(outcome.value).observe(record.duration_s)
        is_single = outcome is Outcome.COMPLETED and len(record.choices) == 1
        if is_single and record.completion_tokens > 1 and record.last_delta_s:
            decode_s = record.last_delta_s - record.started_s - (record.ttft_s or 0.0)
            self._tpot.observe(decode_s / (record.completion_tokens - 1))

    def expose(self) -> bytes:
        """The text a scraper reads."""
        return generate_latest(self._registry)
