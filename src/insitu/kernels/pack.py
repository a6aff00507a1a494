"""A linear's weight as segments of quantised rows, and the layout kernels multiply from.

Not here: reading files (``weights`` fills segments) or the native packing itself. ``pack_segment``
is that layout's definition in NumPy, and native packing must give the same bytes.

Always true: all segments of a PackedLinear have the same k; their rows follow each other in n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import FLOATS, BlockType, Unpacked, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.kernels.blocks import Bytes

Float32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class Segment:
    """Rows of one tensor in one block type: ``data`` is their raw blocks, None once released."""

    name: str
    block_type: BlockType
    n: int
    k: int
    data: memoryview | Bytes | bytes | None

    def __post_init__(self) -> None:
        """Hold the promise that data is whole rows."""
        expected = self.n * self.block_type.row_bytes(self.k)
        num_bytes = len(np.frombuffer(self.data, np.uint8)) if self.data is not None else expected
        if self.n < 1 or self.k < 1 or num_bytes != expected:
            shape = f"{self.block_type} [{self.n}, {self.k}]"
            raise ValueError(f"{self.name}: {shape} takes {expected} bytes, not {num_bytes}")

    def raw(self) -> memoryview | Bytes | bytes:
        """The raw blocks; an error once they were released."""
        if self.data is None:
            raise ValueError(f"{self.name}: its blocks were released after packing")
        return self.data


class PackedLinear:
    """Segments multiplied in one call, with an optional bias over all their outputs."""

    def __init__(self, segments: Sequence[Segment], bias: Float32 | None = None) -> None:
        self.segments = tuple(segments)
        if not self.segments or len({segment.k for segment in self.segments}) != 1:
            shapes = ", ".join(f"{s.name} [{s.n}, {s.k}]" for s in self.segments)
            raise ValueError(f"segments of one linear need one k: {shapes or 'none given'}")
        self.bias = None if bias is None else np.ascontiguousarray(bias, np.float32)
        if self.bias is not None and self.bias.shape != (self.n,):
            raise ValueError(f"{self.name}: bias {self.bias.shape} for {self.n} outputs")

    @property
    def name(self) -> str:
        """Names of the segments' tensors, joined."""
        return "+".join(segment.name for segment in self.segments)

    @property
    def n(self) -> int:
        """Outputs of all segments."""
        return sum(segment.n for segment in self.segments)

    @property
    def k(self) -> int:
        """Inputs."""
        return self.segments[0].k

    @property
    def groups(self) -> tuple[int, ...]:
        """Distinct activation groups, in the order segments first need them; 0 is float rows."""
        return tuple(dict.fromkeys(s.block_type.activation_group for s in self.segments))

    def release(self) -> None:
        """Let go of the raw blocks: the packed form is all that is needed from here on."""
        for segment in self.segments:
            segment.data = None


@dataclass(frozen=True, slots=True)
class Experts:
    """The weights of a mixture, one entry an expert; gate and up are two segments of one linear."""

    gate_up: tuple[PackedLinear, ...]
    down: tuple[PackedLinear, ...]


# Outputs of an n-block: packed, multiplied and claimed by threads together.
OUTPUTS = 32
_UPPER_BITS = {BlockType.Q5_0: 1, BlockType.Q6_K: 2}  # stored apart from the nibbles
# Added to a signed weight to store it unsigned.
_OFFSETS = {
    BlockType.Q8_0: 128,
    BlockType.Q4_0: 8,
    BlockType.Q4_1: 0,
    BlockType.Q5_0: 16,
    BlockType.Q4_K: 0,
    BlockType.Q6_K: 32,
}


def pack_segment(segment: Segment) -> Bytes:
    """The layout kernels read: ceil(n / 32) n-blocks, the outputs past n being zero bytes.

    An n-block holds, per block of inputs (lines are 64 bytes, 16 outputs each, in pairs)::

        4 bits:  4 line pairs; line j, output o, byte b: k = 8j + b low, k = 8j + 4 + b high nibble
        5 or 6:  4 bits as above, then 1 or 2 line pairs of upper bits: byte b of output o has those
                 of k = 4j + b for all j (of k = 16i + 4j + b in line pair i), lowest bits first
        8 bits:  8 line pairs; line j, output o, byte b: k = 4j + b, unsigned (q + 128)
        then     scales [32] float16, and for Q4_1 minima [32] float16
        Q4_K:    8 groups of 4-bit lines; sub-scales [8][32]; sub-mins [4][32][2]; d; dmin
        Q6_K:    8 groups of 6-bit lines; sub-scales [16][32] int8; d
        floats:  [32] elements per input
    """
    kind = segment.block_type
    rows = np.frombuffer(segment.raw(), np.uint8).reshape(segment.n, -1)
    num_blocks = -(-segment.n // OUTPUTS)
    padded = np.zeros((num_blocks * OUTPUTS, rows.shape[1]), np.uint8)
    padded[: segment.n] = rows
    if kind in FLOATS:
        elements = padded.reshape(num_blocks, OUTPUTS, segment.k, kind.block_bytes)
        return elements.transpose(0, 2, 1, 3).reshape(-1)
    blocks = padded.reshape(num_blocks, OUTPUTS, -1, kind.block_bytes)
    parts = unpack(kind, padded, len(padded), segment.k)
    lines = _lines(kind, parts, segment.n)
    tails = [_per_output(tail) for tail in _tails(kind, parts, blocks)]
    return np.concatenate([lines, *tails], axis=2).reshape(-1)


def _lines(kind: BlockType, parts: Unpacked, n: int) -> Bytes:
    """Unsigned weights as lines: [n-blocks, blocks of inputs, bytes]."""
    unsigned = (parts.q.astype(np.int16) + _OFFSETS[kind]).astype(np.uint8)
    unsigned[n:] = 0  # whatever zero bytes mean in this format
    num_blocks, k = len(unsigned) // OUTPUTS, unsigned.shape[1]
    packed = [unsigned] if kind is BlockType.Q8_0 else [_joined(unsigned & np.uint8(15), 4)]
    if kind in _UPPER_BITS:
        packed.append(_joined(unsigned >> np.uint8(4), _UPPER_BITS[kind]))
    halves = [part.reshape(num_blocks, 2, 16, k // 32, -1, 4) for part in packed]
    lines = np.concatenate(halves, axis=4).transpose(0, 3, 4, 1, 2, 5)
    return lines.reshape(num_blocks, k // kind.block_size, -1)


def _joined(values: Bytes, num_bits: int) -> Bytes:
    """Values [n, k] of 1, 2 or 4 bits as bytes: k and the next ones 4 apart, lowest bits first."""
    count = 8 // num_bits
    parts = values.reshape(len(values), -1, count, 4)
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8).reshape(count, 1)
    joined: Bytes = np.bitwise_or.reduce(np.left_shift(parts, shifts, dtype=np.uint8), axis=2)
    return joined


def _tails(kind: BlockType, parts: Unpacked, blocks: Bytes) -> list[Bytes]:
    """What follows a block's lines: each [n-blocks, outputs, blocks of inputs, items, bytes]."""
    shape = (*blocks.shape[:3], -1)
    if parts.sub_scale is None:
        return [
            blocks[..., None, at : at + 2] for at in ((0, 2) if kind is BlockType.Q4_1 else (0,))
        ]
    scales = parts.sub_scale.astype(np.int8).view(np.uint8).reshape(*shape, 1)
    if parts.sub_min is None:
        return [scales, blocks[..., None, 208:210]]
    minima = parts.sub_min.astype(np.uint8).reshape(*shape, 2)
    return [scales, minima, blocks[..., None, 0:2], blocks[..., None, 2:4]]


def _per_output(tail: Bytes) -> Bytes:
    """Outputs side by side within each item: [n-blocks, blocks of inputs, bytes]."""
    ordered = tail.transpose(0, 2, 3, 1, 4)
    return ordered.reshape(*ordered.shape[:2], -1)
