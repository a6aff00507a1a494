"""A model ready to be measured: packed, its KV pool full, steps and raw reads at hand.

Not here: which cases, how often, or what the times mean.

Always true: every KV block that a step reads was written (memory that never was is one page of
zeroes to the processor); a sequence's blocks lie scattered over the pool, as they do in a server.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from insitu.bench.work import Span
from insitu.engine.start import make_native
from insitu.kernels.ceilings import LINE_BYTES, Ceilings, take_profile
from insitu.kernels.sampling import SamplingArrays
from insitu.models.batch import Batch

if TYPE_CHECKING:
    from insitu.bench.cases import Case
    from insitu.engine.plan import Plan
    from insitu.kernels.native import OperatorTime
    from insitu.models.load import LoadedModel

# Of the last-level cache where the kernel does not tell.
DEFAULT_CACHE_BYTES = 64 * 2**20
# A raw read need not be longer than this to show the rate of a longer one.
MAX_READ_BYTES = 2**30


def cache_bytes() -> int:
    """Size of the largest cache of the first processor."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K") and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=DEFAULT_CACHE_BYTES)


class Rig:
    """Steps of a model, and reads of a buffer of its own."""

    def __init__(
        self, model: LoadedModel, plan: Plan, *, read_bytes: int, flush_bytes: int
    ) -> None:
        self._plan = plan
        self._vocab_size = model.spec.vocab_size
        self._random = np.random.default_rng(0)
        self._flush_bytes = lines(flush_bytes)
        self._native = make_native(model, plan)
        try:
            self._blocks = self._random.permutation(plan.num_blocks).astype(np.int32)
            self._fill()
            num_bytes = lines(min(read_bytes, MAX_READ_BYTES)) + self._flush_bytes
            self._ceilings = Ceilings(self._native, num_bytes)
        except BaseException:
            self._native.close()
            raise

    def close(self) -> None:
        """Give memory and threads back."""
        self._native.close()

    @property
    def threads(self) -> int:
        """That the steps run on."""
        return self._plan.threads

    @property
    def isa(self) -> str:
        """Instruction set the steps run on."""
        return self._native.isa

    def int8_peak(self, seconds: float) -> float:
        """Operations a second on registers alone."""
        return self._ceilings.peak_ops_per_second("int8", seconds)

    def float32_peak(self, seconds: float) -> float:
        """Operations a second on registers alone."""
        return self._ceilings.peak_ops_per_second("float32", seconds)

    def read_rate(self, num_bytes: int) -> float:
        """Bytes a second of reading so many that no cache holds, then nothing of a model is cached.

        The read begins where the buffer was not touched since the caches were last flushed.
        """
        wanted = max(LINE_BYTES, lines(min(num_bytes, MAX_READ_BYTES)))
        seconds = self._ceilings.read_seconds(self._flush_bytes, wanted)
        if self._flush_bytes:
            self._ceilings.read_seconds(0, self._flush_bytes)
        return wanted / seconds

    def steps(self, case: Case) -> list[Batch]:
        """The native calls that a case is: one, or a chunk of the prompt after another."""
        chunks = chunks_of(case, self._plan.max_num_batched_tokens_alone)
        last = chunks[-1]
        return [self._rows(spans, has_logits=spans is last) for spans in chunks]

    def run(self, batches: list[Batch]) -> float:
        """Seconds of these steps, forward and sampling, one after another."""
        wanted = [_greedy(batch) for batch in batches]
        start = time.perf_counter()
        for batch, sampling in zip(batches, wanted, strict=True):
            self._native.step(batch, sampling)
        return time.perf_counter() - start

    def start_profile(self) -> None:
        """Measure operators from now on."""
        self._native.start_profile()

    def take_profile(self) -> list[OperatorTime]:
        """What was measured; no more is."""
        return take_profile(self._native)

    def _fill(self) -> None:
        """Prefill one sequence, and give its blocks' contents to all others."""
        size = self._plan.block_size
        most = self._plan.max_num_batched_tokens_alone
        num_tokens = min(most, self._plan.max_model_len, self._plan.num_blocks * size)
        self._native.step(batch := self._rows([Span(num_tokens, num_tokens)]), _greedy(batch))
        num_sources = max(1, num_tokens // size)
        sources = np.resize(self._blocks[:num_sources], len(self._blocks))
        for source, target in zip(sources, self._blocks, strict=True):
            if source != target:
                self._native.copy_block(int(source), int(target))

    def _rows(self, spans: list[Span], *, has_logits: bool = True) -> Batch:
        """A batch of sequences of one length, each with blocks of its own."""
        size = self._plan.block_size
        num_blocks = -(-spans[0].seq_len // size)
        table = self._blocks[: len(spans) * num_blocks].reshape(len(spans), num_blocks)
        positions = [np.arange(s.seq_len - s.num_tokens, s.seq_len, dtype=np.int32) for s in spans]
        slots = [row[p // size] * size + p % size for row, p in zip(table, positions, strict=True)]
        starts = np.cumsum([0, *(span.num_tokens for span in spans)]).astype(np.int32)
        return Batch(
            token_ids=self._random.integers(self._vocab_size, size=int(starts[-1]), dtype=np.int32),
            positions=np.concatenate(positions),
            slot_mapping=np.concatenate(slots),
            block_table=table,
            query_start_loc=starts,
            seq_lens=np.array([span.seq_len for span in spans], np.int32),
            logit_rows=starts[1:] - 1 if has_logits else starts[:0],
        )


def chunks_of(case: Case, max_num_tokens: int) -> list[list[Span]]:
    """New tokens of every sequence, step by step, as the engine would run a prompt alone."""
    if case.phase == "decode":
        return [[Span(1, case.seq_len)] * case.batch]
    ends = [*range(case.context + max_num_tokens, case.seq_len, max_num_tokens), case.seq_len]
    starts = [case.context, *ends[:-1]]
    return [[Span(end - start, end)] for start, end in zip(starts, ends, strict=True)]


def _greedy(batch: Batch) -> SamplingArrays:
    """The most likely token of every row of logits."""
    rows = batch.num_logit_rows
    return SamplingArrays.of(rows, position=batch.seq_lens[:rows])


def lines(num_bytes: int) -> int:
    """Rounded up to whole cache lines."""
    return -(-num_bytes // LINE_BYTES) * LINE_BYTES
