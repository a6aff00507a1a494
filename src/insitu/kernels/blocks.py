"""Byte layouts of quantised blocks, as GGUF stores them, and their NumPy definition.

Not here: files (``weights``) or the layout kernels multiply from (``pack``). A tensor of n rows of
k weights is n rows of blocks, each block's weights being neighbours in k.

Always true: ``decode`` gives the same bits as the float32 formula of the format's definition.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels import blocks_codebook as codebook
from insitu.kernels import blocks_k
from insitu.kernels.block_parts import Bytes, Float32, Int8, Unpacked, bits, halves_at

if TYPE_CHECKING:
    from collections.abc import Callable


class BlockType(StrEnum):
    """How a tensor's weights are stored."""

    # Those that kernels multiply, in the order of csrc/kernels.h.
    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"
    Q5_1 = "Q5_1"
    Q2_K = "Q2_K"
    Q5_K = "Q5_K"
    Q8_K16 = "Q8_K16"  # in no file: what finer types run as
    # Those that run as another type, at no loss (``run_types``).
    Q3_K = "Q3_K"
    IQ4_NL = "IQ4_NL"
    IQ4_XS = "IQ4_XS"
    IQ3_S = "IQ3_S"
    IQ3_XXS = "IQ3_XXS"
    IQ2_S = "IQ2_S"
    IQ2_XS = "IQ2_XS"
    IQ2_XXS = "IQ2_XXS"
    IQ1_M = "IQ1_M"
    IQ1_S = "IQ1_S"
    TQ1_0 = "TQ1_0"
    TQ2_0 = "TQ2_0"
    MXFP4 = "MXFP4"

    @property
    def block_size(self) -> int:
        """Weights a block."""
        return _LAYOUTS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes a block."""
        return _LAYOUTS[self][1]

    @property
    def activation_group(self) -> int:
        """Inputs that share one activation scale when multiplied by this type; 0 for float rows."""
        size = self.block_size
        return 0 if size == 1 else size

    def row_bytes(self, k: int) -> int:
        """Bytes of one row of k weights; k must be whole blocks."""
        if k % self.block_size:
            raise ValueError(f"{self}: {k} is not a multiple of {self.block_size}")
        return k // self.block_size * self.block_bytes


# block size, block bytes
_LAYOUTS = {
    BlockType.F32: (1, 4),
    BlockType.F16: (1, 2),
    BlockType.BF16: (1, 2),
    BlockType.Q8_0: (32, 34),
    BlockType.Q4_0: (32, 18),
    BlockType.Q4_1: (32, 20),
    BlockType.Q5_0: (32, 22),
    BlockType.Q5_1: (32, 24),
    BlockType.Q2_K: (256, 84),
    BlockType.Q3_K: (256, 110),
    BlockType.Q4_K: (256, 144),
    BlockType.Q5_K: (256, 176),
    BlockType.Q6_K: (256, 210),
    BlockType.Q8_K16: (256, 276),
    BlockType.IQ4_NL: (32, 18),
    BlockType.IQ4_XS: (256, 136),
    BlockType.IQ3_S: (256, 110),
    BlockType.IQ3_XXS: (256, 98),
    BlockType.IQ2_S: (256, 82),
    BlockType.IQ2_XS: (256, 74),
    BlockType.IQ2_XXS: (256, 66),
    BlockType.IQ1_M: (256, 56),
    BlockType.IQ1_S: (256, 50),
    BlockType.TQ1_0: (256, 54),
    BlockType.TQ2_0: (256, 66),
    BlockType.MXFP4: (32, 17),
}
FLOATS = (BlockType.F32, BlockType.F16, BlockType.BF16)


def decode(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Float32:
    """Dequantise n rows of k weights: float32 [n, k]."""
    if block_type in FLOATS:
        return _decode_floats(block_type, data, n, k)
    return unpack(block_type, data, n, k).weights()


def unpack(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Unpacked:
    """Take quantised rows apart into integers and scales."""
    blocks = _blocks(block_type, data, n, k)
    take_apart = _UNPACK.get(block_type)
    if take_apart is None:
        raise ValueError(f"{block_type} has no blocks")
    with np.errstate(all="ignore"):  # hostile scales are NaN and Inf
        return take_apart(blocks)


def _blocks(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Bytes:
    """[n, blocks a row, block_bytes]."""
    raw = np.frombuffer(data, np.uint8)
    expected = n * block_type.row_bytes(k)
    if raw.size != expected:
        raise ValueError(f"{block_type} [{n}, {k}] takes {expected} bytes, not {raw.size}")
    return raw.reshape(n, k // block_type.block_size, block_type.block_bytes)


def _nibbles(packed: Bytes) -> Int8:
    """16 bytes a block of 32: weights 0..15 in the low nibbles, 16..31 in the high ones."""
    return bits(packed, 4).view(np.int8).reshape(len(packed), -1)


def _fifths(blocks: Bytes, at: int) -> Int8:
    """Nibbles behind 4 bytes of fifth bits: bit k is weight k's."""
    high = np.unpackbits(blocks[:, :, at : at + 4], axis=2, bitorder="little")
    return _nibbles(blocks[:, :, at + 4 :]) | (high << 4).view(np.int8).reshape(len(blocks), -1)


def _unpack_q8_0(blocks: Bytes) -> Unpacked:
    q = blocks[:, :, 2:].view(np.int8).reshape(len(blocks), -1)
    return Unpacked(q, halves_at(blocks, 0))


def _unpack_q4_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, :, 2:]) - np.int8(8), halves_at(blocks, 0))


def _unpack_q4_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, :, 4:]), halves_at(blocks, 0), m=halves_at(blocks, 2))


def _unpack_q5_0(blocks: Bytes) -> Unpacked:
    return Unpacked(_fifths(blocks, 2) - np.int8(16), halves_at(blocks, 0))


def _unpack_q5_1(blocks: Bytes) -> Unpacked:
    return Unpacked(_fifths(blocks, 4), halves_at(blocks, 0), m=halves_at(blocks, 2))


_UNPACK: dict[BlockType, Callable[[Bytes], Unpacked]] = {
    BlockType.Q8_0: _unpack_q8_0,
    BlockType.Q4_0: _unpack_q4_0,
    BlockType.Q4_1: _unpack_q4_1,
    BlockType.Q5_0: _unpack_q5_0,
    BlockType.Q5_1: _unpack_q5_1,
    BlockType.Q2_K: blocks_k.unpack_q2_k,
    BlockType.Q3_K: blocks_k.unpack_q3_k,
    BlockType.Q4_K: blocks_k.unpack_q4_k,
    BlockType.Q5_K: blocks_k.unpack_q5_k,
    BlockType.Q6_K: blocks_k.unpack_q6_k,
    BlockType.Q8_K16: blocks_k.unpack_q8_k16,
    BlockType.IQ4_NL: codebook.unpack_iq4_nl,
    BlockType.IQ4_XS: codebook.unpack_iq4_xs,
    BlockType.IQ3_S: codebook.unpack_iq3_s,
    BlockType.IQ3_XXS: codebook.unpack_iq3_xxs,
    BlockType.IQ2_S: codebook.unpack_iq2_s,
    BlockType.IQ2_XS: codebook.unpack_iq2_xs,
    BlockType.IQ2_XXS: codebook.unpack_iq2_xxs,
    BlockType.IQ1_M: codebook.unpack_iq1_m,
    BlockType.IQ1_S: codebook.unpack_iq1_s,
    BlockType.TQ1_0: codebook.unpack_tq1_0,
    BlockType.TQ2_0: codebook.unpack_tq2_0,
    BlockType.MXFP4: codebook.unpack_mxfp4,
}


def _decode_floats(
    block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int
) -> Float32:
    raw = _blocks(block_type, data, n, k).reshape(-1)
    if block_type is BlockType.F32:
        return raw.view(np.float32).reshape(n, k)
    if block_type is BlockType.F16:
        return raw.view(np.float16).astype(np.float32).reshape(n, k)
    wide = raw.view(np.uint16).astype(np.uint32) << 16
    return wide.view(np.float32).reshape(n, k)
