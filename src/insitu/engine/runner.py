"""Turn a step's schedule into arrays, and run them in one call.

A step may be started while the one before it runs. A token which that one is about to choose is
named by its row there, and the native side puts it in its place.

Not here: which sequences run, or what a token means.

Always true: row order is schedule order; a sequence's rows depend on that sequence alone; steps run
in the order they were started.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from insitu.engine.sampler import SamplingRows
from insitu.engine.sequence import Embedded
from insitu.models.batch import Batch
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Made, Scheduled
    from insitu.kernels.native import Float32, Started
    from insitu.kernels.program import BatchArrays
    from insitu.kernels.sampling import SamplingArrays, StepResult


@dataclass(frozen=True, slots=True)
class Underway:
    """A step that was started; ``handle`` is its runner's own."""

    scheduled: Items[Scheduled]
    handle: Any


class Runner(Protocol):
    """What the engine runs a step with."""

    def start(self, scheduled: Items[Scheduled], before: Items[Scheduled] = ()) -> Underway:
        """Begin a step, once that of ``before``, which is under way, has ended."""
        ...

    def finish(self, underway: Underway) -> list[Made | Exception | None]:
        """Wait for it. One entry a share: its token or vector, its own failure, or None."""
        ...

    def drop(self, underway: Underway) -> None:
        """Wait for it, whatever became of it."""
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block, after every step started so far."""
        ...

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a block with zeros, after every step started so far."""
        ...

    def close(self) -> None:
        """Give memory and threads back."""
        ...


class Steps(Protocol):
    """The part of ``Native`` that a runner calls."""

    vocab_size: int

    def start(self, batch: BatchArrays, sampling: SamplingArrays | None) -> Started:
        """Have a batch run, and a token chosen for every logit row; None: by ``choose``."""
        ...

    def finish(self, started: Started) -> None:
        """Wait for it."""
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

    def start(self, scheduled: Items[Scheduled], before: Items[Scheduled] = ()) -> Underway:
        """One native call for the whole step; where rows look back, they are chosen at its end."""
        batch = batch_of(scheduled, self._block_size, before)
        if any(item.looks_back for item in scheduled):
            return Underway(scheduled, self._native.start(batch, None))
        self._sampling.begin(scheduled)
        return Underway(scheduled, self._native.start(batch, self._sampling.arrays()))

    def finish(self, underway: Underway) -> list[Made | Exception | None]:
        """Wait for a step, and read what it made; masks are filled while it runs."""
        scheduled = underway.scheduled
        started: Started = underway.handle
        arrays = None
        try:
            if started.result is None:
                self._sampling.begin(scheduled)
                arrays = self._sampling.arrays()
        finally:
            self._native.finish(started)
        result = started.result if arrays is None else self._native.choose(arrays)
        assert result is not None
        tokens = self._sampling.sampled_tokens(scheduled, result)
        if not len(started.pooled):
            return tokens
        vectors = iter(started.pooled)
        return [
            _embedded(item, next(vectors)) if item.is_pooled else token
            for item, token in zip(scheduled, tokens, strict=True)
        ]

    def drop(self, underway: Underway) -> None:
        """Wait for a step, whatever became of it."""
        with suppress(Exception):
            self._native.finish(underway.handle)

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a block."""
        self._native.copy_block(source, target)

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a block with zeros."""
        self._native.wipe_block(block)

    def close(self) -> None:
        """Close the native interpreter and let go of it, whoever still holds this runner."""
        if hasattr(self, "_native"):
            self._native.close()
            del self._native


def batch_of(scheduled: Items[Scheduled], block_size: int, before: Items[Scheduled] = ()) -> Batch:
    """The arrays of a step that follows the one of ``before``; T, S, R and P as in ``Batch``.

    Most shares are one token: plain lists are the quickest way there.
    """
    ends = accumulate(item.num_logit_rows for item in before)
    coming = {
        item.sequence: -row for item, row in zip(before, ends, strict=True) if item.has_logits
    }
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, seq_lens = [0], []
    logit_rows: list[int] = []
    pooled_rows: list[int] = []
    most_blocks = max(len(item.sequence.block_ids) for item in scheduled)
    block_table = np.zeros((len(scheduled), most_blocks), np.int32)
    for index, item in enumerate(scheduled):
        sequence = item.sequence
        blocks = sequence.block_ids
        first, end = item.first, item.end
        token_ids += sequence.token_ids[first:end]
        if end > sequence.num_tokens:
            token_ids.append(coming[sequence])
        if item.num_tokens == 1:
            positions.append(first)
            slots.append(blocks[first // block_size] * block_size + first % block_size)
        else:
            positions += range(first, end)
            slots += _slots(blocks, first, end, block_size)
        starts.append(len(token_ids))
        seq_lens.append(end)
        logit_rows += (len(token_ids) - end + position for position in item.told)
        if item.is_made:
            (pooled_rows if item.is_pooled else logit_rows).append(len(token_ids) - 1)
        block_table[index, : len(blocks)] = blocks
    return Batch(
        token_ids=np.array(token_ids, np.int32),
        positions=np.array(positions, np.int32),
        slot_mapping=np.array(slots, np.int32),
        block_table=block_table,
        query_start_loc=np.array(starts, np.int32),
        seq_lens=np.array(seq_lens, np.int32),
        logit_rows=np.array(logit_rows, np.int32),
        pooled_rows=np.array(pooled_rows, np.int32),
    )


def _embedded(item: Scheduled, vector: Float32) -> Embedded | RequestFailed:
    if np.isfinite(vector).all() and vector.any():
        return Embedded(vector.tobytes())
    return RequestFailed(
        f"The model gave a number that is not finite for token {item.end}."
        if vector.any()
        else f"The model gave zeros for token {item.end}, which have no direction."
    )


def _slots(blocks: Items[int], first: int, end: int, block_size: int) -> list[int]:
    """The slots of positions [first, end)."""
    slots: list[int] = []
    for index in range(first // block_size, (end - 1) // block_size + 1):
        at = index * block_size
        start = blocks[index] * block_size - at
        slots += range(start + max(first, at), start + min(end, at + block_size))
    return slots
