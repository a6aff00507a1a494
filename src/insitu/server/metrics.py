"""Prometheus metrics: what the server saw, and the engine's own counters.

Not here: counting inside the engine (``engine/stats``). Always true: for every route received =
completed + cancelled + failed + refused once idle, and a scrape changes nothing. Prompt tokens
count when the first token arrives (the prompt was computed then); completion tokens as delivered to
this room, those of cancelled requests included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from insitu.server.record import Cause, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.measures import EngineStats
    from insitu.measures import Histogram as EngineHistogram
    from insitu.server.record import Record
    from insitu.types import Generator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GAP_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.75, 1, 2.5)
_TTFT_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 30, 60)
_DURATION_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320)


class Metrics:
    """All series of one server, in a registry of its own."""

    def __init__(self, generator: Generator) -> None:
        self._registry = registry = CollectorRegistry()
        self._received = Counter(
            "insitu_requests_received", "Requests received.", ("route",), registry=registry
        )
        self._ended = Counter(
            "insitu_requests",
            "Requests ended, by outcome.",
            ("route", "outcome"),
            registry=registry,
        )
        self._cancelled = Counter(
            "insitu_requests_cancelled",
            "Requests cancelled, by cause.",
            ("cause",),
            registry=registry,
        )
        self._prompt_tokens = Counter(
            "insitu_prompt_tokens", "Prompt tokens of started requests.", registry=registry
        )
        self._generation_tokens = Counter(
            "insitu_generation_tokens", "Tokens generated and delivered.", registry=registry
        )
        self._ttft = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_TTFT_BOUNDS_S,
            registry=registry,
        )
        self._gap = Histogram(
            "insitu_inter_token_latency_seconds",
            "Between deltas of one request that carry tokens.",
            buckets=_GAP_BOUNDS_S,
            registry=registry,
        )
        self._tpot = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time a token after the first, of completed requests.",
            buckets=_GAP_BOUNDS_S,
            registry=registry,
        )
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From arrival to last byte, by outcome.",
            ("outcome",),
            buckets=_DURATION_BOUNDS_S,
            registry=registry,
        )
        registry.register(_EngineCollector(generator))
        for outcome in Outcome:
            self._duration.labels(outcome.value)
        for cause in Cause:
            self._cancelled.labels(cause.value)

    def note_first_token(self, ttft_s: float, num_prompt_tokens: int) -> None:
        """A request's first token came."""
        self._ttft.observe(ttft_s)
        self._prompt_tokens.inc(num_prompt_tokens)

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


class _EngineCollector(Collector):
    """Reads the engine's counters when scraped."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the names are the engine's."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Every gauge, counter and histogram as it stands."""
        stats = self._generator.stats()
        yield from _gauges(stats)
        for name, value in stats.counters.items():
            title = name.replace("_", " ")
            yield CounterMetricFamily(f"insitu_engine_{name}", f"Engine: {title}.", value=value)
        for name, histogram in stats.histograms.items():
            yield _histogram(name, histogram)


def _gauges(stats: EngineStats) -> Iterable[Metric]:
    usage = stats.num_kv_blocks_used / stats.num_kv_blocks if stats.num_kv_blocks else 0.0
    for name, title, value in (
        ("requests_running", "Sequences being run.", stats.num_running),
        ("requests_waiting", "Sequences waiting for room.", stats.num_waiting),
        ("kv_blocks", "KV blocks of the pool.", stats.num_kv_blocks),
        ("kv_blocks_used", "KV blocks in use.", stats.num_kv_blocks_used),
        ("kv_cache_usage_ratio", "Share of KV blocks in use.", usage),
        ("engine_alive", "1 while the engine's thread runs.", int(stats.is_alive)),
    ):
        yield GaugeMetricFamily(f"insitu_{name}", title, value=value)


def _histogram(name: str, histogram: EngineHistogram) -> Metric:
    buckets, seen = [], 0
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    title = f"Engine: {name.replace('_', ' ')}."
    family = HistogramMetricFamily(f"insitu_engine_{name}", title)
    family.add_metric([], buckets, sum_value=histogram.total)
    return family
