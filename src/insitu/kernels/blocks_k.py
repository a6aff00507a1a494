"""K types: 256 weights a block, sub-blocks of 16 or 32 with integer scales and minima.

Not here: sizes (``blocks``). Each function takes blocks [n, blocks a row, bytes] apart.
"""

from __future__ import annotations

import numpy as np

from insitu.kernels.block_parts import Bytes, Integers, Unpacked, bits, halves_at


def unpack_q2_k(blocks: Bytes) -> Unpacked:
    """16 bytes of 4-bit sub-scales and sub-mins; 2 x 32 bytes of four 2-bit weights; d; dmin."""
    n = len(blocks)
    packed = blocks[:, :, :16].reshape(n, -1).astype(np.int32)
    return Unpacked(
        _quarters(blocks[:, :, 16:80]).view(np.int8).reshape(n, -1),
        halves_at(blocks, 80),
        sub_scale=packed & 15,
        dmin=halves_at(blocks, 82),
        sub_min=packed >> 4,
    )


def unpack_q3_k(blocks: Bytes) -> Unpacked:
    """32 bytes of top bits; 2 x 32 bytes of four 2-bit weights; 12 bytes of sub-scales; d."""
    n = len(blocks)
    tops = bits(blocks[:, :, :32], 1).reshape(n, -1)
    low = _quarters(blocks[:, :, 32:96]).reshape(n, -1)
    # Sub-scales j: four bits in byte j % 8, the top two in byte 8 + j % 4.
    first = bits(blocks[:, :, 96:104], 4).reshape(n, -1, 16)
    top = bits(blocks[:, :, 104:108], 2).reshape(n, -1, 16)
    scales = (first | top << 4).astype(np.int32) - 32
    q = (low | tops << 2).view(np.int8) - np.int8(4)
    return Unpacked(q, halves_at(blocks, 108), sub_scale=scales.reshape(n, -1))


def unpack_q4_k(blocks: Bytes) -> Unpacked:
    """d, dmin, 12 bytes of 6-bit sub-scales and sub-mins, 4 x 32 bytes of nibbles (64 weights)."""
    q = bits(blocks[:, :, 16:].reshape(*blocks.shape[:2], 4, 32), 4)
    return _with_sub_mins(blocks, q)


def unpack_q5_k(blocks: Bytes) -> Unpacked:
    """As Q4_K, with 32 bytes of fifth bits (bit j: sub-block j) before the nibbles."""
    fifths = bits(blocks[:, :, 16:48], 1)  # [n, blocks, 8, 32]
    nibbles = bits(blocks[:, :, 48:].reshape(*blocks.shape[:2], 4, 32), 4).reshape(fifths.shape)
    return _with_sub_mins(blocks, nibbles | fifths << 4)


def _with_sub_mins(blocks: Bytes, q: Integers) -> Unpacked:
    n = len(blocks)
    packed = blocks[:, :, 4:16]
    first, second, third = packed[:, :, 0:4], packed[:, :, 4:8], packed[:, :, 8:12]
    # Sub-blocks 0..3 have six bits in place; 4..7 keep four bits in `third`, the top two in the
    # spare bits of `first` (scales) and `second` (mins).
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=2)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=2)
    return Unpacked(
        q.astype(np.int8).reshape(n, -1),
        halves_at(blocks, 0),
        sub_scale=scales.reshape(n, -1).astype(np.int32),
        dmin=halves_at(blocks, 2),
        sub_min=mins.reshape(n, -1).astype(np.int32),
    )


def unpack_q6_k(blocks: Bytes) -> Unpacked:
    """Two halves of 128 weights: 64 bytes of low nibbles, 32 of 2-bit tops; 16 int8 scales; d."""
    n = len(blocks)
    low = bits(blocks[:, :, :128].reshape(n, -1, 2, 64), 4).reshape(n, -1, 2, 4, 32)
    tops = bits(blocks[:, :, 128:192].reshape(n, -1, 2, 32), 2)
    q = (low | tops << 4).view(np.int8).reshape(n, -1) - np.int8(32)
    scales = blocks[:, :, 192:208].view(np.int8).reshape(n, -1).astype(np.int32)
    return Unpacked(q, halves_at(blocks, 208), sub_scale=scales)


def unpack_q8_k16(blocks: Bytes) -> Unpacked:
    """Our own, for running: d float32; 16 int8 sub-scales; 256 int8 weights."""
    n = len(blocks)
    d = np.ascontiguousarray(blocks[:, :, :4]).view(np.float32)[:, :, 0]
    scales = blocks[:, :, 4:20].view(np.int8).reshape(n, -1).astype(np.int32)
    return Unpacked(blocks[:, :, 20:].view(np.int8).reshape(n, -1), d, sub_scale=scales)


def _quarters(packed: Bytes) -> Bytes:
    """[n, blocks, 64] bytes as 256 fields of two bits: 32 bytes hold four runs of 32."""
    return bits(packed.reshape(*packed.shape[:2], 2, 32), 2)
