"""Turn a step's schedule into arrays, and run them in one call.

Not here: which sequences run, or what a token means.

Always true: row order is schedule order; a sequence's rows depend on that sequence alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from insitu.engine.sampler import sampled_tokens, sampling_arrays
from insitu.models.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import SampledToken, Scheduled
    from insitu.kernels.native import SamplingArrays, StepResult
    from insitu.kernels.program import BatchArrays


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

    def run(self, scheduled: Items[Scheduled]) -> list[SampledToken | Exception | None]:
        """One native call for the whole step."""
        batch = batch_of(scheduled, self._block_size)
        sampling = sampling_arrays(scheduled, self._native.vocab_size)
        return sampled_tokens(scheduled, self._native.step(batch, sampling))

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        self._native.copy_block(source, target)

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a block with zeros."""
        self._native.wipe_block(block)

    def close(self) -> None:
        """Close the native interpreter."""
        self._native.close()


def batch_of(scheduled: Items[Scheduled], block_size: int) -> Batch:
    """The arrays of a step; T, S and R as in ``Batch``."""
    token_ids: list[int] = []
    starts, seq_lens, logit_rows = [0], [], []
    positions, slots = [], []
    most_blocks = max(len(item.sequence.block_ids) for item in scheduled)
    block_table = np.zeros((len(scheduled), most_blocks), np.int32)
    for index, item in enumerate(scheduled):
        sequence = item.sequence
        first = sequence.num_computed_tokens
        end = first + item.num_tokens
        token_ids += sequence.token_ids[first:end]
        starts.append(len(token_ids))
        seq_lens.append(end)
        if item.has_logits:
            logit_rows.append(len(token_ids) - 1)
        blocks = np.array(sequence.block_ids, np.int32)
        block_table[index, : len(blocks)] = blocks
        position = np.arange(first, end, dtype=np.int32)
        positions.append(position)
        slots.append(blocks[position // block_size] * block_size + position % block_size)
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        block_table=block_table,
        query_start_loc=np.array(starts, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        logit_rows=np.array(logit_rows, np.int32),
    )
