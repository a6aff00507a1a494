"""Seconds that a batch of prompts takes in this process, from the call to the last token.

Not here: HTTP (``serve``) or single steps (``native``). Always true: every batch runs once before
it is timed; the prefix cache is off, so that nothing is found computed.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.llm.front_door import LLM
from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from insitu.bench.watcher import Watcher


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """One batch size: seconds of each repeat."""

    batch: int
    input_tokens: int
    output_tokens: int
    seconds: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        median = statistics.median(self.seconds)
        return {
            "batch": self.batch,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "seconds": median,
            "fastest_s": min(self.seconds),
            "slowest_s": max(self.seconds),
            "output_tokens_per_s": self.batch * self.output_tokens / median,
        }


def batch_latencies(  # noqa: PLR0913
    path: Path,
    batches: Sequence[int],
    *,
    input_tokens: int,
    output_tokens: int,
    repeats: int,
    settings: dict[str, Any],
    watch: Watcher,
) -> list[BatchLatency]:
    """Time batches of random ids, greedily continued to their full length."""
    rng = random.Random(0)  # noqa: S311
    params = SamplingParams(max_tokens=output_tokens, temperature=0, ignore_eos=True, seed=0)
    most = max(batches)
    rows = []
    with LLM(path, max_num_seqs=most, prefix_caching="off", **settings) as llm:
        vocab_size = llm.describe().vocab_size
        prompts = [[rng.randrange(vocab_size) for _ in range(input_tokens)] for _ in range(most)]
        for index, batch in enumerate(batches):
            seconds = []
            for _ in range(1 + repeats):
                started_s = time.perf_counter()
                llm.generate(prompts[:batch], params)
                seconds.append(time.perf_counter() - started_s)
            rows.append(BatchLatency(batch, input_tokens, output_tokens, tuple(seconds[1:])))
            watch(f"batch {batch}", index + 1, len(batches))
    return rows
