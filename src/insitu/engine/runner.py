"""Turn a step's schedule into arrays, and run them in one call.

Not here: which sequences run, or what a token means.

Always true: row order is schedule order; a sequence's rows depend on that sequence alone.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

import numpy as np

from insitu.engine.sampler import SamplingRows
from insitu.models.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import SampledToken, Scheduled
    from insitu.kernels.program import BatchArrays
    from insitu.kernels.sampling import SamplingArrays, StepResult


class Runner(Protocol):
    """What the engine runs a step with."""

    def run(self, scheduled: Items[Scheduled]) -> list[SampledToken | Exception | None]:
        """One entry a share: its token, its own failure, or None where none was wanted."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        ...

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a block with zeros."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class Steps(Protocol):
    """The part of ``Native`` that a runner calls."""

    vocab_size: int

    def step(self, batch: BatchArrays, sampling: SamplingArrays) -> StepResult:
        """Run a batch and choose a token for every logit row."""
        ...

    def compute(self, batch: BatchArrays) -> None:
        """Run a batch; ``choose`` comes next."""
        ...

    def choose(self, sampling: SamplingArrays) -> StepResult:
        """Choose a token for every logit row of the batch just computed."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy a KV block of every layer."""
        ...

    def wipe_block(self, block: int) -> None:
        """Overwrite a KV block of every layer with zeros."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class BatchRunner:
    """Runs steps on the native interpreter, or anything that steps like it."""

    def __init__(self, native: Steps, block_size: int) -> None:
        self._native = native
        self._block_size = block_size
        self._sampling = SamplingRows(native.vocab_size)
        self._masker = ThreadPoolExecutor(1, thread_name_prefix="insitu-masks")

    def run(self, scheduled: Items[Scheduled]) -> list[SampledToken | Exception | None]:
        """One native call for the whole step; two where masks are filled while the first runs."""
        batch = batch_of(scheduled, self._block_size)
        self._sampling.begin(scheduled)
        if self._sampling.has_constraints:
            result = self._choose_constrained(batch)
        else:
            result = self._native.step(batch, self._sampling.arrays())
        return self._sampling.sampled_tokens(scheduled, result)

    def _choose_constrained(self, batch: BatchArrays) -> StepResult:
        arrays = self._masker.submit(self._sampling.arrays)
        try:
            self._native.compute(batch)
        finally:
            wait([arrays])
        return self._native.choose(arrays.result())

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        self._native.copy_block(source, target)

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a block with zeros."""
        self._native.wipe_block(block)

    def close(self) -> None:
        """Close the native interpreter and let go of it, whoever still holds this runner."""
        self._masker.shutdown()
        if hasattr(self, "_native"):
            self._native.close()
            del self._native


def batch_of(scheduled: Items[Scheduled], block_size: int) -> Batch:
    """The arrays of a step; T, S and R as in ``Batch``.

    Most shares are one token, and the step waits: plain lists are the quickest way there.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, seq_lens, logit_rows = [0], [], []
    most_blocks = max(len(item.sequence.block_ids) for item in scheduled)
    block_table = np.zeros((len(scheduled), most_blocks), np.int32)
    for index, item in enumerate(scheduled):
        sequence = item.sequence
        blocks = sequence.block_ids
        first = sequence.num_computed_tokens
        end = first + item.num_tokens
        if item.num_tokens == 1:
            token_ids.append(sequence.token_ids[first])
            positions.append(first)
            slots.append(blocks[first // block_size] * block_size + first % block_size)
        else:
            token_ids += sequence.token_ids[first:end]
            positions += range(first, end)
            slots += _slots(blocks, first, end, block_size)
        starts.append(len(token_ids))
        seq_lens.append(end)
        if item.has_logits:
            logit_rows.append(len(token_ids) - 1)
        block_table[index, : len(blocks)] = blocks
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        block_table=block_table,
        query_start_loc=np.array(starts, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        logit_rows=np.array(logit_rows, np.int32),
    )


def _slots(blocks: Items[int], first: int, end: int, block_size: int) -> list[int]:
    """The slots of positions [first, end)."""
    slots: list[int] = []
    for index in range(first // block_size, (end - 1) // block_size + 1):
        at = index * block_size
        start = blocks[index] * block_size - at
        slots += range(start + max(first, at), start + min(end, at + block_size))
    return slots
