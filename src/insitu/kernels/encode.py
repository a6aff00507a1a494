"""Quantise float32 simply, scales from the largest weight: for tests and small models.

Not here: methods that weigh errors (the room ``quantize``). Always true: what is written is what
``blocks`` reads; zeros stay zeros.
"""

from __future__ import annotations

import numpy as np

from insitu.kernels.assemble import assemble
from insitu.kernels.block_parts import Float32, Int32, Unpacked, spread
from insitu.kernels.blocks import FLOATS, BlockType

# Weights of types without a minimum: the least, the greatest; is the peak put at the least?
_SIGNED = {
    BlockType.Q8_0: (-127, 127),
    BlockType.Q4_0: (-8, 7),
    BlockType.Q5_0: (-16, 15),
}
_LEVELS = {BlockType.Q4_1: 15, BlockType.Q5_1: 31}
# Greatest weight, greatest sub-scale, weights of a sub-block.
_WITH_SUB_MINS = {
    BlockType.Q2_K: (3, 15, 16),
    BlockType.Q4_K: (15, 63, 32),
    BlockType.Q5_K: (31, 63, 32),
}
_WITH_SUB_SCALES = {BlockType.Q6_K: 31, BlockType.Q8_K16: 127}


def encode(block_type: BlockType, weights: Float32) -> bytes:
    """Quantise float32 [n, k]."""
    weights = np.ascontiguousarray(weights, np.float32)
    block_type.row_bytes(weights.shape[1])  # refuses part blocks
    if block_type in FLOATS:
        return _encode_floats(block_type, weights)
    if block_type in _SIGNED:
        parts = _signed(weights, *_SIGNED[block_type])
    elif block_type in _LEVELS:
        parts = _with_minimum(weights, _LEVELS[block_type])
    elif block_type in _WITH_SUB_MINS:
        parts = _with_sub_mins(weights, *_WITH_SUB_MINS[block_type])
    elif block_type in _WITH_SUB_SCALES:
        parts = _with_sub_scales(weights, _WITH_SUB_SCALES[block_type])
    else:
        raise ValueError(f"{block_type} has no encoder")
    return assemble(block_type, parts).tobytes()


def _encode_floats(block_type: BlockType, weights: Float32) -> bytes:
    if block_type is BlockType.F32:
        return weights.tobytes()
    if block_type is BlockType.F16:
        return weights.astype(np.float16).tobytes()
    bits = weights.view(np.uint32)
    even = (bits >> 16) & 1  # ties to even
    return ((bits + np.uint32(0x7FFF) + even) >> 16).astype(np.uint16).tobytes()


def _half(values: Float32) -> Float32:
    """As float16 holds them."""
    return values.astype(np.float16).astype(np.float32)


def _quantize(weights: Float32, scale: Float32, low: int, high: int) -> Int32:
    safe = np.where(scale == 0, np.float32(1), scale)
    return np.clip(np.rint(weights / safe), low, high).astype(np.int32)


def _signed(weights: Float32, low: int, high: int) -> Unpacked:
    n, k = weights.shape
    groups = weights.reshape(n, -1, 32)
    at = np.abs(groups).argmax(axis=2)[:, :, None]
    peaks = np.take_along_axis(groups, at, axis=2)[:, :, 0]
    # The largest weight lands on the end with one step more, where there is one.
    ends = np.abs(peaks) / np.float32(high) if low == -high else peaks / np.float32(low)
    d = _half(ends.astype(np.float32))
    q = _quantize(groups, d[:, :, None], low, high).astype(np.int8)
    return Unpacked(q.reshape(n, k), d)


def _with_minimum(weights: Float32, levels: int) -> Unpacked:
    n, k = weights.shape
    groups = weights.reshape(n, -1, 32)
    low = groups.min(axis=2)
    d, m = _half((groups.max(axis=2) - low) / np.float32(levels)), _half(low)
    q = _quantize(groups - m[:, :, None], d[:, :, None], 0, levels).astype(np.int8)
    return Unpacked(q.reshape(n, k), d, m=m)


def _with_sub_mins(weights: Float32, levels: int, most: int, size: int) -> Unpacked:
    n, k = weights.shape
    sub = weights.reshape(n, -1, size)
    low = np.minimum(sub.min(axis=2), 0)
    scale, minimum = (sub.max(axis=2) - low) / levels, -low
    d, s = _two_levels(scale, k // 256, most)
    dmin, m = _two_levels(minimum, k // 256, most)
    offset, step = spread(dmin, m.shape[1]) * m, spread(d, s.shape[1]) * s
    moved = sub + offset[:, :, None].astype(np.float32)
    q = _quantize(moved, step[:, :, None].astype(np.float32), 0, levels).astype(np.int8)
    return Unpacked(q.reshape(n, k), d, sub_scale=s, dmin=dmin, sub_min=m)


def _with_sub_scales(weights: Float32, levels: int) -> Unpacked:
    n, k = weights.shape
    sub = weights.reshape(n, -1, 16)
    d, s = _two_levels(np.abs(sub).max(axis=2) / levels, k // 256, 127)
    step = (spread(d, s.shape[1]) * s).astype(np.float32)
    q = _quantize(sub, step[:, :, None], -levels - (levels == 31), levels).astype(np.int8)
    return Unpacked(q.reshape(n, k), d, sub_scale=s)


def _two_levels(values: Float32, blocks: int, most: int) -> tuple[Float32, Int32]:
    """One float16 a block and integers up to ``most`` whose products come near the values."""
    d = _half(values.reshape(len(values), blocks, -1).max(axis=2) / most)
    return d, _quantize(values, spread(d, values.shape[1]), 0, most)
