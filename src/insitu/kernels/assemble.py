"""From integers and scales to blocks: the inverse of taking them apart (``blocks.unpack``).

Not here: choosing integers or scales (``encode``, the room ``quantize``).

Always true: ``unpack`` of what is assembled gives the parts back, scales as float16 holds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.blocks import BlockType

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.block_parts import Bytes, Float32, Int8, Int32, Integers, Unpacked


def assemble(block_type: BlockType, parts: Unpacked) -> Bytes:
    """The blocks of rows: [n, bytes of a row]."""
    n, k = parts.q.shape
    q = parts.q.reshape(n, k // block_type.block_size, block_type.block_size)
    return _ASSEMBLE[block_type](parts, q).reshape(n, -1)


def can_assemble(block_type: BlockType) -> bool:
    """Whether there is a way back for this type."""
    return block_type in _ASSEMBLE


def _halves(values: Float32 | None) -> Bytes:
    """[n, blocks] to their two bytes each."""
    assert values is not None
    return np.ascontiguousarray(values, np.float16)[:, :, None].view(np.uint8)


def _unsigned(q: Int8, offset: int) -> Bytes:
    return (q.astype(np.int16) + offset).astype(np.uint8)


def _joined(fields: Integers, width: int) -> Bytes:
    """[..., 8 / width, bytes] to [..., bytes], lowest bits first."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    joined: Bytes = np.bitwise_or.reduce(np.left_shift(fields.astype(np.uint8), shifts), axis=-2)
    return joined


def _nibbles(u: Bytes) -> Bytes:
    """32 weights: the first 16 in low nibbles."""
    return _joined((u & 15).reshape(*u.shape[:2], 2, 16), 4)


def _q8_0(parts: Unpacked, q: Int8) -> Bytes:
    return np.concatenate([_halves(parts.d), q.view(np.uint8)], axis=2)


def _q4_0(parts: Unpacked, q: Int8) -> Bytes:
    return np.concatenate([_halves(parts.d), _nibbles(_unsigned(q, 8))], axis=2)


def _q4_1(parts: Unpacked, q: Int8) -> Bytes:
    heads = [_halves(parts.d), _halves(parts.m)]
    return np.concatenate([*heads, _nibbles(q.view(np.uint8))], axis=2)


def _with_fifths(heads: list[Bytes], u: Bytes) -> Bytes:
    fifths = np.packbits(u >> 4, axis=2, bitorder="little")
    return np.concatenate([*heads, fifths, _nibbles(u)], axis=2)


def _q5_0(parts: Unpacked, q: Int8) -> Bytes:
    return _with_fifths([_halves(parts.d)], _unsigned(q, 16))


def _q5_1(parts: Unpacked, q: Int8) -> Bytes:
    return _with_fifths([_halves(parts.d), _halves(parts.m)], q.view(np.uint8))


def _subs(values: Int32 | None, blocks: int) -> Bytes:
    """Sub-scales or sub-mins as bytes: [n, blocks, 8 or 16]."""
    assert values is not None
    return values.astype(np.uint8).reshape(len(values), blocks, -1)


def _q2_k(parts: Unpacked, q: Int8) -> Bytes:
    n, blocks = q.shape[:2]
    scales = _subs(parts.sub_scale, blocks) | _subs(parts.sub_min, blocks) << 4
    packed = _joined(q.view(np.uint8).reshape(n, blocks, 2, 4, 32), 2).reshape(n, blocks, 64)
    return np.concatenate([scales, packed, _halves(parts.d), _halves(parts.dmin)], axis=2)


def _k_scales(parts: Unpacked, blocks: int) -> Bytes:
    """12 bytes of eight 6-bit sub-scales and sub-mins."""
    s, m = _subs(parts.sub_scale, blocks), _subs(parts.sub_min, blocks)
    first, second = s[:, :, :4] | s[:, :, 4:] >> 4 << 6, m[:, :, :4] | m[:, :, 4:] >> 4 << 6
    return np.concatenate([first, second, s[:, :, 4:] & 15 | (m[:, :, 4:] & 15) << 4], axis=2)


def _q4_k(parts: Unpacked, q: Int8) -> Bytes:
    n, blocks = q.shape[:2]
    nibbles = _joined(q.view(np.uint8).reshape(n, blocks, 4, 2, 32), 4).reshape(n, blocks, 128)
    heads = [_halves(parts.d), _halves(parts.dmin), _k_scales(parts, blocks)]
    return np.concatenate([*heads, nibbles], axis=2)


def _q5_k(parts: Unpacked, q: Int8) -> Bytes:
    n, blocks = q.shape[:2]
    u = q.view(np.uint8)
    fifths = _joined(u.reshape(n, blocks, 8, 32) >> 4, 1)
    nibbles = _joined((u & 15).reshape(n, blocks, 4, 2, 32), 4).reshape(n, blocks, 128)
    heads = [_halves(parts.d), _halves(parts.dmin), _k_scales(parts, blocks)]
    return np.concatenate([*heads, fifths, nibbles], axis=2)


def _q6_k(parts: Unpacked, q: Int8) -> Bytes:
    n, blocks = q.shape[:2]
    u = _unsigned(q, 32).reshape(n, blocks, 2, 4, 32)
    low = _joined((u & 15).reshape(n, blocks, 2, 2, 64), 4).reshape(n, blocks, 128)
    tops = _joined(u >> 4, 2).reshape(n, blocks, 64)
    scales = _signed_subs(parts, blocks)
    return np.concatenate([low, tops, scales, _halves(parts.d)], axis=2)


def _q8_k16(parts: Unpacked, q: Int8) -> Bytes:
    d = np.ascontiguousarray(parts.d, np.float32)[:, :, None].view(np.uint8)
    return np.concatenate([d, _signed_subs(parts, q.shape[1]), q.view(np.uint8)], axis=2)


def _signed_subs(parts: Unpacked, blocks: int) -> Bytes:
    """A sub-scale for each 16 weights, whether the parts have one for 16, 32 or all."""
    n = len(parts.q)
    if parts.sub_scale is None:
        return np.ones((n, blocks, 16), np.uint8)
    scales = parts.sub_scale.astype(np.int8).view(np.uint8).reshape(n, blocks, -1)
    return np.repeat(scales, 16 // scales.shape[2], axis=2)


_ASSEMBLE: dict[BlockType, Callable[[Unpacked, Int8], Bytes]] = {
    BlockType.Q8_0: _q8_0,
    BlockType.Q4_0: _q4_0,
    BlockType.Q4_1: _q4_1,
    BlockType.Q5_0: _q5_0,
    BlockType.Q5_1: _q5_1,
    BlockType.Q2_K: _q2_k,
    BlockType.Q4_K: _q4_k,
    BlockType.Q5_K: _q5_k,
    BlockType.Q6_K: _q6_k,
    BlockType.Q8_K16: _q8_k16,
}
