"""What an engine tells of itself: the numbers that health and metrics are made of.

Not here: counting (``engine/stats``) or exporting (the server's metrics).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the engine's plain counters and gauges (``engine/stats`` owns the first).

    ``num_sequences`` to ``num_streams`` are 0 once idle: choices in the engine, prompts submitted
    and not ended, what its thread has not taken in yet, streams that somebody reads. ``step_age_s``
    is how long the step that runs has run, 0 while there is none; ``is_late`` says that it took too
    long, ``is_lost`` that only a restart is left.
    """

    num_running: int
    num_waiting: int
    num_kv_blocks: int
    num_kv_blocks_used: int
    counters: Mapping[str, int]
    histograms: Mapping[str, Histogram]
    is_alive: bool
    num_sequences: int = 0
    num_open: int = 0
    num_queued: int = 0
    num_streams: int = 0
    step_age_s: float = 0.0
    is_late: bool = False
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Histogram:
    """``counts[i]`` values lie at or below ``bounds[i]`` and above the bound before it."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
