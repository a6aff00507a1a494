"""The engine's counters, gauges and histograms as Prometheus series.

Where vLLM has a name for the same thing, a series is called that with ``insitu_`` for ``vllm:``, so
that a dashboard needs one change. ``docs/metrics.md`` lists them all (a test compares).

Not here: what the server itself counts (``metrics``). Always true: the engine's counting costs a
scrape nothing and a scrape costs the engine nothing but a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.measures import EngineStats, Histogram
    from insitu.types import Generator

# By the engine's own name: the series' name and what it says. Others are insitu_engine_<name>.
SERIES = {
    "preemptions": ("num_preemptions", "Sequences that gave their blocks back and began anew."),
    "prefix_cache_queries": ("prefix_cache_queries", "Prompt tokens looked up."),
    "prefix_cache_hits": ("prefix_cache_hits", "Prompt tokens found computed."),
    "sequences_submitted": ("engine_sequences_submitted", "Choices that the engine took in."),
    "sequences_finished": ("engine_sequences_finished", "Choices that finished by themselves."),
    "sequences_aborted": (
        "engine_sequences_aborted",
        "Choices let go of before their end: cancelled, or at a stop string.",
    ),
    "sequences_failed": ("engine_sequences_failed", "Choices that ended with an error."),
    "steps": ("engine_steps", "Steps run."),
    "late_steps": ("engine_late_steps", "Steps that returned after their time."),
    "failed_steps": ("engine_failed_steps", "Steps that failed and were run share by share."),
    "computed_tokens": ("engine_computed_tokens", "Tokens computed, recomputed ones again."),
    "sampled_tokens": ("engine_sampled_tokens", "Tokens sampled, forced ones included."),
    "forced_tokens": ("engine_forced_tokens", "Tokens that a grammar or a budget forced."),
    "step_seconds": ("engine_step_seconds", "A step, schedule to update."),
    "step_sequences": ("engine_step_sequences", "Sequences in a step: its batch size."),
    "step_tokens": ("iteration_tokens_total", "Tokens computed in a step."),
    "step_prefill_tokens": (
        "engine_step_prefill_tokens",
        "Those of them in shares that begin within a prompt.",
    ),
    "step_decode_tokens": ("engine_step_decode_tokens", "The rest of them."),
    "queue_seconds": ("request_queue_time_seconds", "From submission to a choice's first step."),
    "first_token_seconds": (
        "time_to_first_token_seconds",
        "From submission to the engine's first token.",
    ),
    "cancel_seconds": (
        "cancel_latency_seconds",
        "From the wish to let go of a choice until its blocks were free.",
    ),
}


class EngineCollector(Collector):
    """Reads the engine's counters when scraped."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: the engine says what it counts."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Every gauge, counter and histogram as it stands."""
        stats = self._generator.stats()
        yield from _gauges(stats)
        for name, value in stats.counters.items():
            yield CounterMetricFamily(*_named(name), value=value)
        for name, histogram in stats.histograms.items():
            yield _histogram(name, histogram)


def _named(name: str) -> tuple[str, str]:
    series, title = SERIES.get(name, (f"engine_{name}", f"Engine: {name.replace('_', ' ')}."))
    return f"insitu_{series}", title


def _gauges(stats: EngineStats) -> Iterable[Metric]:
    usage = stats.num_kv_blocks_used / stats.num_kv_blocks if stats.num_kv_blocks else 0.0
    for name, title, value in (
        ("num_requests_running", "Choices being run.", stats.num_running),
        ("num_requests_waiting", "Choices waiting for room.", stats.num_waiting),
        ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all.", usage),
        ("kv_blocks", "KV blocks of the pool.", stats.num_kv_blocks),
        ("kv_blocks_used", "KV blocks that some choice holds.", stats.num_kv_blocks_used),
        ("engine_sequences", "Choices that the engine knows.", stats.num_sequences),
        ("engine_requests_open", "Prompts submitted and not ended.", stats.num_open),
        ("engine_queued_items", "What its thread has yet to take in.", stats.num_queued),
        ("streams_open", "Answers being read from the engine.", stats.num_streams),
        ("engine_alive", "1 while the engine's thread runs.", int(stats.is_alive)),
        ("engine_step_late", "1 while a step takes longer than it may.", int(stats.is_late)),
        ("engine_step_age_seconds", "How long the step that runs has run.", stats.step_age_s),
    ):
        yield GaugeMetricFamily(f"insitu_{name}", title, value=value)


def _histogram(name: str, histogram: Histogram) -> Metric:
    buckets, seen = [], 0
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    for bound, count in zip(bounds, histogram.counts, strict=True):
        seen += count
        buckets.append((bound, float(seen)))
    family = HistogramMetricFamily(*_named(name))
    family.add_metric([], buckets, sum_value=histogram.total)
    return family
