"""Checkpoints that AWQ, GPTQ or compressed-tensors packed: their linears as blocks, at no loss.

A linear ``X`` of such a folder is several tensors (integers, scales, zero points). Here it is one,
``X.weight``, in the block type that holds the same numbers: Q4_0 (4 bits about 8), Q5_0 (4 bits
with zero points), Q8_0 (8 bits), or F32 where scales do not fit a float16 or groups are not of
neighbours. It is made when read.

Not here: what the packers' tensors hold (``packings``). Always true: a setting that is not
understood is refused by its name.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.assemble import assemble
from insitu.kernels.block_parts import Unpacked
from insitu.kernels.blocks import BlockType
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.packings import Packed, packing_of
from insitu.weights.tensors import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from insitu.kernels.block_parts import Bytes
    from insitu.weights.metadata import Metadata
    from insitu.weights.safetensors import SafetensorsFile
    from insitu.weights.tensors import TensorSource

KEY = "quantization_config"


def with_plain_linears(source: SafetensorsFile) -> TensorSource:
    """The source itself, or where its config says that it is packed, a view of it that is not."""
    try:
        settings = source.metadata.mapping(KEY)
        if settings is None:
            source.require_floats()
            return source
        return PrequantizedSource(source, settings)
    except ModelFileError:
        source.close()
        raise


class PrequantizedSource:
    """A packed checkpoint: a ``TensorSource`` of plain linears."""

    format = "safetensors"

    def __init__(self, source: SafetensorsFile, settings: Metadata) -> None:
        self._source = source
        packing = packing_of(source, settings)
        tensors = dict(source.tensors)
        self._linears: dict[str, Packed] = {}
        used: set[str] = set()
        for linear in packing.linears():
            used.update(linear.tensors)
            for name in linear.tensors:
                tensors.pop(name, None)
            self._linears[linear.name] = linear
            kind = _block_type(linear)
            n, k = linear.n, linear.k
            num_bytes = n * kind.row_bytes(k)
            tensors[linear.name] = TensorInfo(linear.name, (n, k), kind, num_bytes, 0, is_made=True)
        for name in source.entries:
            if name not in used and name not in tensors:
                dtype = source.entries[name].dtype
                message = f"{dtype} is not used by {packing.method}"
                raise UnsupportedModelError(source.path, f"tensor {name}", message)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.metadata = source.metadata.without(KEY)

    @property
    def path(self) -> Path:
        """What was opened."""
        return self._source.path

    @property
    def size_bytes(self) -> int:
        """Size of the files that hold the weights."""
        return self._source.size_bytes

    def read(self, name: str) -> memoryview:
        """A tensor's blocks, made now if it is a packed linear's weight."""
        linear = self._linears.get(name)
        if linear is None:
            return self._source.read(name)
        return _blocks(linear, self.tensors[name].block_type).data

    def file(self, name: str) -> bytes | None:
        """Another file of the folder, None where there is none."""
        return self._source.file(name)

    def digest(self) -> str:
        """SHA-256 of the files that hold the weights."""
        return self._source.digest()

    def close(self) -> None:
        """Let go of the files; views already handed out stay valid."""
        self._source.close()


def _block_type(linear: Packed) -> BlockType:
    """By the range of integers and whether float16 holds every scale."""
    if not linear.is_in_order:
        return BlockType.F32
    scales = linear.scales()
    if linear.k // scales.shape[1] % 32:
        return BlockType.F32
    halves = scales.astype(np.float16).astype(np.float32)
    if not np.array_equal(halves, scales) or linear.low < -128 or linear.high > 127:
        return BlockType.F32
    if linear.low >= -8 and linear.high <= 7:
        return BlockType.Q4_0
    return BlockType.Q5_0 if linear.low >= -16 and linear.high <= 15 else BlockType.Q8_0


def _blocks(linear: Packed, kind: BlockType) -> Bytes:
    q, scales = linear.integers(), linear.scales()  # [n, k], [n, groups]
    per_group = linear.k // scales.shape[1]
    if kind is BlockType.F32:
        weights = q.astype(np.float32) * np.repeat(scales, per_group, axis=1)
        return weights.astype(np.float32).view(np.uint8).reshape(-1)
    parts = Unpacked(q.astype(np.int8), np.repeat(scales, per_group // 32, axis=1))
    return assemble(kind, parts).reshape(-1)
