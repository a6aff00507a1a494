"""Figures of a load: how long its requests waited, and what the server did in that time.

TTFT: from sending to the first chunk with text. ITL: between such chunks. TPOT: (end of text -
TTFT) / (tokens - 1), a request's mean. E2E: to the end. Goodput: requests a second that kept every
bound asked for.

Not here: sending. Always true: a failed request counts in ``errors`` and in nothing else.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.bench.client import Answer
    from insitu.bench.serve import Run

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a good request keeps to; None: anything is good enough."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    @property
    def are_set(self) -> bool:
        """Whether anything is asked for."""
        return (self.ttft_s, self.tpot_s, self.e2e_s) != (None, None, None)

    def hold(self, answer: Answer) -> bool:
        """Whether a finished request kept to all of them."""
        pairs = (
            (self.ttft_s, answer.chunk_times_s[0]),
            (self.tpot_s, tpot_s(answer) or 0.0),
            (self.e2e_s, answer.end_s),
        )
        return all(bound is None or value <= bound for bound, value in pairs)


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution in seconds; empty where nothing was measured."""

    mean: float
    percentiles: tuple[float, ...]
    largest: float

    def as_json(self) -> dict[str, float]:
        """By names such as ``p99``."""
        named = {f"p{p:g}": value for p, value in zip(PERCENTILES, self.percentiles, strict=True)}
        return {"mean": self.mean, **named, "max": self.largest}


@dataclass(frozen=True, slots=True)
class Latencies:
    """What ``insitu bench serve`` prints."""

    num_requests: int
    num_finished: int
    errors: dict[str, int]
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    goodput_per_s: float | None
    client_cpu_share: float
    spreads: dict[str, Spread]  # ttft_s, itl_s, tpot_s, e2e_s

    @property
    def output_tokens_per_s(self) -> float:
        """Of all requests together."""
        return self.output_tokens / self.wall_s

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "requests": self.num_requests,
            "finished": self.num_finished,
            "errors": self.errors,
            "wall_s": self.wall_s,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "requests_per_s": self.num_finished / self.wall_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "goodput_per_s": self.goodput_per_s,
            "client_cpu_share": self.client_cpu_share,
            **{name: spread.as_json() for name, spread in self.spreads.items()},
        }


def latencies(run: Run, bounds: Bounds) -> Latencies:
    """Figures of a run."""
    finished = [one for one in run.answers if not one.error]
    good = sum(map(bounds.hold, finished)) / run.wall_s if bounds.are_set else None
    values = {
        "ttft_s": [one.chunk_times_s[0] for one in finished],
        "itl_s": [gap for one in finished for gap in gaps_s(one)],
        "tpot_s": [mean for one in finished if (mean := tpot_s(one)) is not None],
        "e2e_s": [one.end_s for one in finished],
    }
    return Latencies(
        num_requests=len(run.answers),
        num_finished=len(finished),
        errors=dict(Counter(one.error for one in run.answers if one.error)),
        wall_s=run.wall_s,
        prompt_tokens=sum(one.prompt_tokens for one in finished),
        output_tokens=sum(one.output_tokens for one in finished),
        goodput_per_s=good,
        client_cpu_share=run.client_cpu_share,
        spreads={name: _spread(one) for name, one in values.items() if one},
    )


def gaps_s(answer: Answer) -> list[float]:
    """Seconds between chunks."""
    times = answer.chunk_times_s
    return [later - earlier for earlier, later in pairwise(times)]


def tpot_s(answer: Answer) -> float | None:
    """Mean seconds a token after the first, or None for an answer of one."""
    num_tokens = answer.output_tokens or len(answer.chunk_times_s)
    if num_tokens < 2:
        return None
    return (answer.chunk_times_s[-1] - answer.chunk_times_s[0]) / (num_tokens - 1)


def _spread(values: Sequence[float]) -> Spread:
    percentiles = np.percentile(values, PERCENTILES)
    return Spread(float(np.mean(values)), tuple(map(float, percentiles)), max(values))
