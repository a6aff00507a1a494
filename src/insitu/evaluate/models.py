"""A model that gives the logits of every token of a window: run natively or by the definition.

Not here: what is made of them (``figures``). Always true: windows do not see each other; nothing
large is allocated before it is known to fit.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from insitu.engine.machine import memory_limit, num_usable_cpus
from insitu.evaluate.errors import EvaluateError
from insitu.kernels import native, reference
from insitu.kernels.passes import lower
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.kernels.kv_layout import KVDtype

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

# Tokens whose logits are held at once.
ROWS = 64
BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True)
class How:
    """How a model is run."""

    window: int
    kv_dtype: KVDtype = "f16"
    threads: int | None = None


class Subject(Protocol):
    """What is evaluated."""

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        ...

    def logits(self, ids: Int32) -> Iterator[Float32]:
        """Of a window from its start, up to ROWS rows at a time: [rows, vocab_size]."""
        ...


class Native:
    """A model as it is served."""

    def __init__(self, model: LoadedModel, how: How) -> None:
        num_blocks = -(-how.window // BLOCK_SIZE)
        kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype=how.kv_dtype)
        limits = native.Limits(ROWS, ROWS, 1, num_blocks, num_blocks)
        threads = how.threads or num_usable_cpus()
        program = lower(model.program)
        _require_memory(native.native_sizes(program, kv, limits, threads).total_bytes)
        self.vocab_size = model.spec.vocab_size
        self._native = native.Native(program, kv=kv, limits=limits, num_threads=threads)

    def logits(self, ids: Int32) -> Iterator[Float32]:
        """Of a window from its start."""
        for batch in _batches(ids):
            yield self._native.forward(batch)

    def close(self) -> None:
        """Give its memory back."""
        self._native.close()


class Reference:
    """A model as it is defined: float32 over dequantised weights, float32 keys and values."""

    def __init__(self, model: LoadedModel, window: int) -> None:
        kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
        sizes = [segment.n * segment.k * 4 for li in model.linears for segment in li.segments]
        # Without, every chunk of the text dequantises them anew.
        keeps_weights = sum(sizes) < memory_limit().limit_bytes // 2
        if not keeps_weights:
            _require_memory(max(sizes) * 2 + window * kv.bytes_per_token)
        self.vocab_size = model.spec.vocab_size
        self._reference = reference.Reference(model.program, kv, keep_weights=keeps_weights)

    def logits(self, ids: Int32) -> Iterator[Float32]:
        """Of a window from its start."""
        for batch in _batches(ids):
            yield self._reference.run(batch)


@contextmanager
def opened_native(path: Path, how: How) -> Iterator[Subject]:
    """The file as it is served."""
    source = open_source(path)
    try:
        subject = Native(_fitting(load_model(source), how.window), how)
    finally:
        source.close()
    try:
        yield subject
    finally:
        subject.close()


@contextmanager
def opened_reference(path: Path, window: int) -> Iterator[Subject]:
    """The file as its definition has it: slow."""
    source = open_source(path)
    try:
        yield Reference(_fitting(load_model(source), window), window)
    finally:
        source.close()


def _fitting(model: LoadedModel, window: int) -> LoadedModel:
    most = model.spec.max_model_len
    if window > most:
        raise EvaluateError(f"--window {window}: the model takes {most} tokens.")
    return model


def _require_memory(num_bytes: int) -> None:
    limit = memory_limit()
    if num_bytes > limit.limit_bytes:
        held = f"{limit.limit_bytes} bytes ({limit.source})"
        raise EvaluateError(f"the model takes {num_bytes} bytes, which do not fit in {held}.")


def _batches(ids: Int32) -> Iterator[Batch]:
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    table = np.arange(num_blocks, dtype=np.int32)[None]
    for start in range(0, len(ids), ROWS):
        stop = min(start + ROWS, len(ids))
        at = np.arange(start, stop, dtype=np.int32)
        starts, length = np.array([0, stop - start], np.int32), np.array([stop], np.int32)
        yield Batch(ids[start:stop], at, at, table, starts, length, at - start)
