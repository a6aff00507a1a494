"""Byte layouts of quantised blocks, as GGUF stores them, and their NumPy definition.

Not here: files (``weights``) or the layout kernels multiply from (``pack``). A tensor of n rows of
k weights is n rows of blocks, each block's weights being neighbours in k.

Always true: ``decode`` gives the same bits as the float32 formula of the format's definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class BlockType(StrEnum):
    """How a tensor's weights are stored."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"

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
        return _LAYOUTS[self][2]

    def row_bytes(self, k: int) -> int:
        """Bytes of one row of k weights; k must be whole blocks."""
        if k % self.block_size:
            raise ValueError(f"{self}: {k} is not a multiple of {self.block_size}")
        return k // self.block_size * self.block_bytes


# block size, block bytes, activation group
_LAYOUTS = {
    BlockType.F32: (1, 4, 0),
    BlockType.F16: (1, 2, 0),
    BlockType.BF16: (1, 2, 0),
    BlockType.Q8_0: (32, 34, 32),
    BlockType.Q4_0: (32, 18, 32),
    BlockType.Q4_1: (32, 20, 32),
    BlockType.Q5_0: (32, 22, 32),
    BlockType.Q4_K: (256, 144, 256),
    BlockType.Q6_K: (256, 210, 256),
}
FLOATS = (BlockType.F32, BlockType.F16, BlockType.BF16)


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The parts of quantised rows: weight = d * sub_scale * q + m - dmin * sub_min.

    Absent factors are 1, absent terms 0. ``q`` is signed, its offset (8, 16 or 32) already taken
    off; Q4_1 and Q4_K have none.
    """

    q: npt.NDArray[np.int8]  # [n, k]
    d: Float32  # [n, k / block_size]
    m: Float32 | None = None  # Q4_1: [n, k / 32]
    sub_scale: npt.NDArray[np.int32] | None = None  # Q4_K: [n, k / 32]; Q6_K: [n, k / 16]
    dmin: Float32 | None = None  # Q4_K: [n, k / 256]
    sub_min: npt.NDArray[np.int32] | None = None  # Q4_K: [n, k / 32]


def decode(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Float32:
    """Dequantise n rows of k weights: float32 [n, k]."""
    if block_type in FLOATS:
        return _decode_floats(block_type, data, n, k)
    parts = unpack(block_type, data, n, k)
    if parts.sub_scale is None:
        scale, size = parts.d, 32
    else:
        size = k // parts.sub_scale.shape[1]
        scale = np.repeat(parts.d, 256 // size, axis=1) * parts.sub_scale.astype(np.float32)
    weights = parts.q.reshape(n, -1, size).astype(np.float32)
    weights *= scale[:, :, None]
    if parts.m is not None:
        weights += parts.m[:, :, None]
    if parts.dmin is not None and parts.sub_min is not None:
        minimum = np.repeat(parts.dmin, 8, axis=1) * parts.sub_min.astype(np.float32)
        weights -= minimum[:, :, None]
    return weights.reshape(n, k)


def unpack(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Unpacked:
    """Take quantised rows apart into integers and scales."""
    blocks = _blocks(block_type, data, n, k)
    match block_type:
        case BlockType.Q8_0:
            q = blocks[:, :, 2:].view(np.int8).reshape(n, k)
            return Unpacked(q, _f16(blocks, 0))
        case BlockType.Q4_0:
            return Unpacked(_nibbles(blocks[:, :, 2:], n, k) - np.int8(8), _f16(blocks, 0))
        case BlockType.Q4_1:
            q = _nibbles(blocks[:, :, 4:], n, k)
            return Unpacked(q, _f16(blocks, 0), m=_f16(blocks, 2))
        case BlockType.Q5_0:
            high = np.unpackbits(blocks[:, :, 2:6], axis=2, bitorder="little").reshape(n, k)
            q = _nibbles(blocks[:, :, 6:], n, k) | (high << 4).view(np.int8)
            return Unpacked(q - np.int8(16), _f16(blocks, 0))
        case BlockType.Q4_K:
            return _unpack_q4_k(blocks, n, k)
        case BlockType.Q6_K:
            return _unpack_q6_k(blocks, n, k)
    raise ValueError(f"{block_type} has no blocks")


def _blocks(block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int) -> Bytes:
    """[n, blocks a row, block_bytes]."""
    raw = np.frombuffer(data, np.uint8)
    expected = n * block_type.row_bytes(k)
    if raw.size != expected:
        raise ValueError(f"{block_type} [{n}, {k}] takes {expected} bytes, not {raw.size}")
    return raw.reshape(n, k // block_type.block_size, block_type.block_bytes)


def _f16(blocks: Bytes, offset: int) -> Float32:
    """The half-precision number at a byte offset of every block: [n, blocks a row]."""
    halves = np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view(np.float16)
    return halves[:, :, 0].astype(np.float32)


def _nibbles(packed: Bytes, n: int, k: int) -> npt.NDArray[np.int8]:
    """16 bytes a block of 32: weights 0..15 in the low nibbles, 16..31 in the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=2).view(np.int8).reshape(n, k)


def _unpack_q4_k(blocks: Bytes, n: int, k: int) -> Unpacked:
    """d, dmin, 12 bytes of 6-bit sub-scales and sub-mins, 4 x 32 bytes of nibbles (64 weights)."""
    packed = blocks[:, :, 4:16]
    first, second, third = packed[:, :, 0:4], packed[:, :, 4:8], packed[:, :, 8:12]
    # Sub-blocks 0..3 have six bits in place; 4..7 keep four bits in `third`, the top two in the
    # spare bits of `first` (scales) and `second` (mins).
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=2)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=2)
    pairs = blocks[:, :, 16:].reshape(n, -1, 4, 32)
    q = np.concatenate([pairs & 15, pairs >> 4], axis=3).view(np.int8).reshape(n, k)
    return Unpacked(
        q,
        _f16(blocks, 0),
        sub_scale=scales.reshape(n, -1).astype(np.int32),
        dmin=_f16(blocks, 2),
        sub_min=mins.reshape(n, -1).astype(np.int32),
    )


def _unpack_q6_k(blocks: Bytes, n: int, k: int) -> Unpacked:
    """Two halves of 128 weights: 64 bytes of low nibbles, 32 of 2-bit tops; 16 int8 scales; d."""
    low = blocks[:, :, :128].reshape(n, -1, 2, 64)
    high = blocks[:, :, 128:192].reshape(n, -1, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=3).reshape(n, -1, 2, 4, 32)
    tops = (high >> np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)) & 3
    q = (nibbles | (tops << 4)).view(np.int8).reshape(n, k) - np.int8(32)
    scales = blocks[:, :, 192:208].view(np.int8).reshape(n, -1).astype(np.int32)
    return Unpacked(q, _f16(blocks, 208), sub_scale=scales)


def _decode_floats(
    block_type: BlockType, data: memoryview | bytes | Bytes, n: int, k: int
) -> Float32:
    raw = _blocks(block_type, data, n, k).reshape(-1)
    if block_type is BlockType.F32:
        return raw.view(np.float32).reshape(n, k)
    if block_type is BlockType.F16:
        return raw.view(np.float16).astype(np.float32).reshape(n, k)
    bits = raw.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(n, k)


def encode(block_type: BlockType, weights: Float32) -> bytes:
    """Quantise float32 [n, k] simply (scale from the largest weight): for small and test models."""
    weights = np.ascontiguousarray(weights, np.float32)
    block_type.row_bytes(weights.shape[1])  # refuses part blocks
    if block_type in FLOATS:
        return _encode_floats(block_type, weights)
    if block_type in (BlockType.Q4_K, BlockType.Q6_K):
        encode_k = _encode_q4_k if block_type is BlockType.Q4_K else _encode_q6_k
        return encode_k(weights.reshape(-1, 256)).tobytes()
    return _encode_32(block_type, weights.reshape(-1, 32)).tobytes()


def _encode_floats(block_type: BlockType, weights: Float32) -> bytes:
    if block_type is BlockType.F32:
        return weights.tobytes()
    if block_type is BlockType.F16:
        return weights.astype(np.float16).tobytes()
    bits = weights.view(np.uint32)
    even = (bits >> 16) & 1  # ties to even
    return ((bits + np.uint32(0x7FFF) + even) >> 16).astype(np.uint16).tobytes()


def _half_bytes(values: Float32) -> tuple[Bytes, Float32]:
    """Half-precision numbers as bytes [blocks, 2], and as they read back [blocks, 1]."""
    halves = values.astype(np.float16)
    return halves.reshape(-1, 1).view(np.uint8), halves.astype(np.float32).reshape(-1, 1)


def _quantize(weights: Float32, scale: Float32, low: int, high: int) -> npt.NDArray[np.int32]:
    safe = np.where(scale == 0, np.float32(1), scale)
    return np.clip(np.rint(weights / safe), low, high).astype(np.int32)


def _encode_32(block_type: BlockType, weights: Float32) -> Bytes:
    peaks = weights[np.arange(len(weights)), np.abs(weights).argmax(axis=1)]
    if block_type is BlockType.Q8_0:
        head, d = _half_bytes(np.abs(peaks) / 127)
        q = _quantize(weights, d, -127, 127).astype(np.int8).view(np.uint8)
        return np.concatenate([head, q], axis=1)
    if block_type is BlockType.Q4_1:
        low = weights.min(axis=1)
        head, d = _half_bytes((weights.max(axis=1) - low) / 15)
        minimum, m = _half_bytes(low)
        nibbles = _quantize(weights - m, d, 0, 15).astype(np.uint8)
        return np.concatenate([head, minimum, nibbles[:, :16] | nibbles[:, 16:] << 4], axis=1)
    half = 8 if block_type is BlockType.Q4_0 else 16
    head, d = _half_bytes(peaks / -half)  # the largest weight lands on the end with one step more
    q = (_quantize(weights, d, -half, half - 1) + half).astype(np.uint8)
    packed = (q[:, :16] & 15) | (q[:, 16:] & 15) << 4
    if block_type is BlockType.Q4_0:
        return np.concatenate([head, packed], axis=1)
    return np.concatenate([head, np.packbits(q >> 4, axis=1, bitorder="little"), packed], axis=1)


def _encode_q4_k(weights: Float32) -> Bytes:
    sub = weights.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=2), 0)
    scale, minimum = (sub.max(axis=2) - low) / 15, -low
    head, d = _half_bytes(scale.max(axis=1) / 63)
    tail, dmin = _half_bytes(minimum.max(axis=1) / 63)
    s = _quantize(scale, d, 0, 63).astype(np.uint8)
    m = _quantize(minimum, dmin, 0, 63).astype(np.uint8)
    offset, step = (dmin * m)[:, :, None], (d * s)[:, :, None]
    q = _quantize(sub + offset, step, 0, 15).astype(np.uint8).reshape(-1, 4, 2, 32)
    nibbles = (q[:, :, 0] | q[:, :, 1] << 4).reshape(len(weights), 128)
    first, second = s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6
    third = s[:, 4:] & 15 | (m[:, 4:] & 15) << 4
    return np.concatenate([head, tail, first, second, third, nibbles], axis=1)


def _encode_q6_k(weights: Float32) -> Bytes:
    sub = weights.reshape(-1, 16, 16)
    scale = np.abs(sub).max(axis=2) / 31
    head, d = _half_bytes(scale.max(axis=1) / 127)
    s = _quantize(scale, d, -128, 127)
    q = (_quantize(sub, (d * s)[:, :, None], -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([q[:, :, 0:2] & 15 | (q[:, :, 2:4] & 15) << 4], axis=2)
    high = q >> 4
    tops = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    scales = s.astype(np.int8).view(np.uint8)
    return np.concatenate([low.reshape(-1, 128), tops.reshape(-1, 64), scales, head], axis=1)
