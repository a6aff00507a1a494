"""Plain counters of what the engine did; only its thread writes them.

Not here: gauges (``loop`` knows them), exporting (the server's metrics read a snapshot).

Always true: a counter never falls; submitted = finished + aborted + failed once idle.
"""

from __future__ import annotations

from bisect import bisect_left

from insitu.measures import Histogram

_COUNTERS = (
    "sequences_submitted",
    "sequences_finished",
    "sequences_aborted",
    "sequences_failed",
    "preemptions",
    "steps",
    "computed_tokens",
    "sampled_tokens",
    "forced_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "late_steps",
    "failed_steps",
)
_BOUNDS: dict[str, tuple[float, ...]] = {
    "step_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    "step_sequences": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "step_tokens": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "step_prefill_tokens": (0, 1, 8, 16, 32, 64, 128, 256, 512, 1024),
    "step_decode_tokens": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
    "queue_seconds": (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
    "first_token_seconds": (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0),
    "cancel_seconds": (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
}


class Stats:
    """Counters and histograms by name."""

    def __init__(self) -> None:
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self._counts = {name: [0] * (len(bounds) + 1) for name, bounds in _BOUNDS.items()}
        self._totals = dict.fromkeys(_BOUNDS, 0.0)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        self._counters[name] += amount

    def counter(self, name: str) -> int:
        """A counter as it stands."""
        return self._counters[name]

    def observe(self, name: str, value: float) -> None:
        """Add a value to a histogram."""
        self._counts[name][bisect_left(_BOUNDS[name], value)] += 1
        self._totals[name] += value

    def histograms(self) -> dict[str, Histogram]:
        """Every histogram as it stands."""
        return {
            name: Histogram(bounds, tuple(self._counts[name]), self._totals[name])
            for name, bounds in _BOUNDS.items()
        }

    def counters(self) -> dict[str, int]:
        """Every counter as it stands."""
        return dict(self._counters)
