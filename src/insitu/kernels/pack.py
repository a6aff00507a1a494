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

from insitu.kernels.blocks import FLOATS, BlockType, unpack
from insitu.kernels.run_types import convert

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from insitu.kernels.block_parts import Bytes, Unpacked

    Blocks = memoryview | Bytes | bytes

Float32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class Segment:
    """Rows of one tensor, run as one block type: ``data`` is their blocks, None once released.

    The blocks are of that type, or of ``stored_as`` and made into it when they are wanted; or a
    function gives them then.
    """

    name: str
    block_type: BlockType
    n: int
    k: int
    data: Blocks | Callable[[], Blocks] | None
    stored_as: BlockType | None = None
    is_transposed: bool = False  # the tensor holds [k, n]

    def __post_init__(self) -> None:
        """Hold the promise that data is whole rows."""
        expected = self.n * self.stored_type.row_bytes(self.k)
        is_here = self.data is not None and not callable(self.data)
        num_bytes = len(np.frombuffer(self._stored(), np.uint8)) if is_here else expected
        if self.n < 1 or self.k < 1 or num_bytes != expected:
            shape = f"{self.stored_type} [{self.n}, {self.k}]"
            raise ValueError(f"{self.name}: {shape} takes {expected} bytes, not {num_bytes}")

    @property
    def stored_type(self) -> BlockType:
        """What the blocks are of."""
        return self.block_type if self.stored_as is None else self.stored_as

    @property
    def is_ready(self) -> bool:
        """Whether ``raw`` has nothing to do."""
        return self.data is not None and self.stored_as is None and not callable(self.data)

    def raw(self) -> Blocks:
        """Blocks of ``block_type``; an error once they were released."""
        stored = self._stored()
        if self.stored_as is None:
            return stored
        return convert(self.stored_as, self.block_type, stored, self.n, self.k)

    def rows(self, ids: npt.NDArray[np.integer]) -> Segment:
        """Only these rows, in this order."""
        picked = np.frombuffer(self._stored(), np.uint8).reshape(self.n, -1)[ids].reshape(-1)
        return Segment(self.name, self.block_type, len(ids), self.k, picked, self.stored_as)

    def _stored(self) -> Blocks:
        if self.data is None:
            raise ValueError(f"{self.name}: its blocks were released after packing")
        return self.data() if callable(self.data) else self.data


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
# Bits stored in lines of their own, lowest first.
_FIELDS = {
    BlockType.Q8_0: (8,),
    BlockType.Q8_K16: (8,),
    BlockType.Q2_K: (2,),
    BlockType.Q5_0: (4, 1),
    BlockType.Q5_1: (4, 1),
    BlockType.Q5_K: (4, 1),
    BlockType.Q6_K: (4, 2),
}
# Where a block has its float scales and minima: (first byte, end).
_SUPERS = {
    BlockType.Q4_1: ((0, 2), (2, 4)),
    BlockType.Q5_1: ((0, 2), (2, 4)),
    BlockType.Q4_K: ((0, 2), (2, 4)),
    BlockType.Q5_K: ((0, 2), (2, 4)),
    BlockType.Q2_K: ((80, 82), (82, 84)),
    BlockType.Q6_K: ((208, 210),),
    BlockType.Q8_K16: ((0, 4),),
}
# Added to a signed weight to store it unsigned.
_OFFSETS = {
    BlockType.Q8_0: 128,
    BlockType.Q8_K16: 128,
    BlockType.Q4_0: 8,
    BlockType.Q5_0: 16,
    BlockType.Q6_K: 32,
}


def pack_segment(segment: Segment) -> Bytes:
    """The layout kernels read: ceil(n / 32) n-blocks, the outputs past n being zero bytes.

    An n-block holds, per block of inputs (lines are 64 bytes, 16 outputs each, in pairs)::

        4 bits:  4 line pairs; line j, output o, byte b: k = 8j + b low, k = 8j + 4 + b high nibble
        5 or 6:  4 bits as above, then 1 or 2 line pairs of upper bits: byte b of output o has those
                 of k = 4j + b for all j (of k = 16i + 4j + b in line pair i), lowest bits first
        2 bits:  2 line pairs, as the upper bits of 6
        8 bits:  8 line pairs; line j, output o, byte b: k = 4j + b, unsigned (q + 128)
        then     scales [32] float16, and for Q4_1 and Q5_1 minima [32] float16
        Q4_K:    8 groups of 4-bit lines; sub-scales [8][32]; sub-mins [4][32][2]; d; dmin
        Q5_K:    as Q4_K, of 5-bit lines
        Q2_K:    8 groups of 2-bit lines; sub-scales [16][32]; sub-mins [16][32]; d; dmin
        Q6_K:    8 groups of 6-bit lines; sub-scales [16][32] int8; d
        Q8_K16:  8 groups of 8-bit lines; sub-scales [16][32] int8; d float32
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
    unsigned = (parts.q.astype(np.int16) + _OFFSETS.get(kind, 0)).astype(np.uint8)
    unsigned[n:] = 0  # whatever zero bytes mean in this format
    num_blocks, k = len(unsigned) // OUTPUTS, unsigned.shape[1]
    packed, shift = [], 0
    for width in _FIELDS.get(kind, (4,)):
        packed.append(_joined(unsigned >> np.uint8(shift) & np.uint8((1 << width) - 1), width))
        shift += width
    halves = [part.reshape(num_blocks, 2, 16, k // 32, -1, 4) for part in packed]
    lines = np.concatenate(halves, axis=4).transpose(0, 3, 4, 1, 2, 5)
    return lines.reshape(num_blocks, k // kind.block_size, -1)


def _joined(values: Bytes, num_bits: int) -> Bytes:
    """Values [n, k] of few bits as bytes: k and the next ones 4 apart, lowest bits first."""
    count = 8 // num_bits
    parts = values.reshape(len(values), -1, count, 4)
    shifts = np.arange(0, 8, num_bits, dtype=np.uint8).reshape(count, 1)
    joined: Bytes = np.bitwise_or.reduce(np.left_shift(parts, shifts, dtype=np.uint8), axis=2)
    return joined


def _tails(kind: BlockType, parts: Unpacked, blocks: Bytes) -> list[Bytes]:
    """What follows a block's lines: each [n-blocks, outputs, blocks of inputs, items, bytes]."""
    shape = (*blocks.shape[:3], -1)
    supers = [blocks[..., None, first:end] for first, end in _SUPERS.get(kind, ((0, 2),))]
    if parts.sub_scale is None:
        return supers
    scales = parts.sub_scale.astype(np.int8).view(np.uint8).reshape(*shape, 1)
    if parts.sub_min is None:
        return [scales, *supers]
    together = 1 if kind is BlockType.Q2_K else 2
    return [scales, parts.sub_min.astype(np.uint8).reshape(*shape, together), *supers]


def _per_output(tail: Bytes) -> Bytes:
    """Outputs side by side within each item: [n-blocks, blocks of inputs, bytes]."""
    ordered = tail.transpose(0, 2, 3, 1, 4)
    return ordered.reshape(*ordered.shape[:2], -1)
