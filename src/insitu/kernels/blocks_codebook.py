"""Types whose weights are looked up in codebooks of one, four or eight weights; ternary ones.

Not here: sizes (``blocks``), the codebooks of four and eight (``codebooks``). Each function takes
blocks [n, blocks a row, bytes] apart.

Always true: a factor such as 1/8 that a format multiplies by is in ``d``, where it is exact: what
is left is integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from insitu.kernels.block_parts import (
    Bytes,
    Float32,
    Int8,
    Int32,
    Integers,
    Unpacked,
    bits,
    halves_at,
)
from insitu.kernels.codebooks import codebook

Uint16 = npt.NDArray[np.uint16]

# Of one weight, by nibble.
IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.int8)
MXFP4 = np.array((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12), np.int8)


def unpack_iq4_nl(blocks: Bytes) -> Unpacked:
    """d; 16 bytes of nibbles."""
    return Unpacked(IQ4[_nibbles(blocks[:, :, 2:])], halves_at(blocks, 0))


def unpack_mxfp4(blocks: Bytes) -> Unpacked:
    """A power of two, half of 2^(byte - 127); 16 bytes of nibbles."""
    exponents = blocks[:, :, 0].astype(np.int32) - 128
    d = np.ldexp(np.float32(1), exponents).astype(np.float32)
    return Unpacked(MXFP4[_nibbles(blocks[:, :, 1:])], d)


def unpack_iq4_xs(blocks: Bytes) -> Unpacked:
    """d; sub-scales of 6 bits, 16 bits of tops before 4 bytes of nibbles; 128 bytes of nibbles."""
    n = len(blocks)
    tops = bits(blocks[:, :, 2:4, None], 2).reshape(n, -1, 8)
    low = bits(blocks[:, :, 4:8, None], 4).reshape(n, -1, 8)
    scales = (low | tops << 4).astype(np.int32) - 32
    q = IQ4[bits(blocks[:, :, 8:].reshape(n, -1, 8, 16), 4)].reshape(n, -1)
    return Unpacked(q, halves_at(blocks, 0), sub_scale=scales.reshape(n, -1))


def unpack_iq2_xxs(blocks: Bytes) -> Unpacked:
    """d; for each 32 weights four indices of a byte, then four signs of 7 bits and a sub-scale."""
    parts = blocks[:, :, 2:].reshape(*blocks.shape[:2], 8, 8)
    signs, scales = _signs_and_scale(parts[..., 4:])
    return _grid("IQ2_XXS", blocks, parts[..., :4], signs, scales, np.float32(0.125))


def unpack_iq2_xs(blocks: Bytes) -> Unpacked:
    """d; 32 x 16 bits: an index of 9, a sign of 7; 8 bytes of sub-scales, two each."""
    words = _words(blocks[:, :, 2:66])
    signs = _signs_of_7(words >> 9)
    scales = _nibble_scales(blocks[:, :, 66:74])
    return _grid("IQ2_XS", blocks, words & 511, signs, scales, np.float32(0.125))


def unpack_iq2_s(blocks: Bytes) -> Unpacked:
    """d; 32 indices' low bytes; 32 bytes of signs; 8 of indices' tops; 8 of sub-scales."""
    n = len(blocks)
    tops = bits(blocks[:, :, 66:74, None], 2).reshape(n, -1, 32).astype(np.uint16)
    index = blocks[:, :, 2:34] | tops << 8
    signs = _signs(blocks[:, :, 34:66])
    scales = _nibble_scales(blocks[:, :, 74:82])
    return _grid("IQ2_S", blocks, index, signs, scales, np.float32(0.125))


def unpack_iq3_xxs(blocks: Bytes) -> Unpacked:
    """d; 64 indices of a byte; for each 32 weights four signs of 7 bits and a sub-scale."""
    signs, scales = _signs_and_scale(blocks[:, :, 66:98].reshape(*blocks.shape[:2], 8, 4))
    return _grid("IQ3_XXS", blocks, blocks[:, :, 2:66], signs, scales, np.float32(0.25))


def unpack_iq3_s(blocks: Bytes) -> Unpacked:
    """d; 64 indices' low bytes; 8 of tops; 32 of signs; 4 of sub-scales, two each."""
    n = len(blocks)
    tops = bits(blocks[:, :, 66:74, None], 1).reshape(n, -1, 64).astype(np.uint16)
    index = blocks[:, :, 2:66] | tops << 8
    signs = _signs(blocks[:, :, 74:106])
    scales = _nibble_scales(blocks[:, :, 106:110])
    return _grid("IQ3_S", blocks, index, signs, scales, np.float32(1))


def unpack_iq1_s(blocks: Bytes) -> Unpacked:
    """d; 32 indices' low bytes; 8 x 16 bits: four tops of 3, a sub-scale of 3, a leaning."""
    n = len(blocks)
    words = _words(blocks[:, :, 34:50])
    tops = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).reshape(n, -1, 32)
    lean = np.where(words & 0x8000, -1, 1).astype(np.int8)
    scales = (words >> 12 & 7).astype(np.int32) * 2 + 1
    index = blocks[:, :, 2:34] | tops << 8
    return _leaning(index, lean, scales, halves_at(blocks, 0))


def unpack_iq1_m(blocks: Bytes) -> Unpacked:
    """32 indices' low bytes; 16 of tops and leanings; 4 x 16 bits: four sub-scales, 4 bits of d."""
    n = len(blocks)
    words = _words(blocks[:, :, 48:56])
    d = np.bitwise_or.reduce((words >> 12) << np.arange(0, 16, 4, dtype=np.uint16), axis=2)
    scales = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & 7).astype(np.int32) * 2 + 1
    fields = bits(blocks[:, :, 32:48, None], 4).reshape(n, -1, 32)
    lean = np.where(fields & 8, -1, 1).astype(np.int8)
    index = blocks[:, :, :32] | (fields & 7).astype(np.uint16) << 8
    return _leaning(index, lean, scales, d.view(np.float16).astype(np.float32))


def unpack_tq1_0(blocks: Bytes) -> Unpacked:
    """48 bytes of five ternary digits, 32 + 16; 4 bytes of four; d."""
    n = len(blocks)
    pieces = (blocks[:, :, :32], 5), (blocks[:, :, 32:48], 5), (blocks[:, :, 48:52], 4)
    digits = [_ternary(piece, count).reshape(n, blocks.shape[1], -1) for piece, count in pieces]
    return Unpacked(np.concatenate(digits, axis=2).reshape(n, -1), halves_at(blocks, 52))


def unpack_tq2_0(blocks: Bytes) -> Unpacked:
    """2 x 32 bytes of four 2-bit digits; d."""
    n = len(blocks)
    q = bits(blocks[:, :, :64].reshape(n, -1, 2, 32), 2).view(np.int8).reshape(n, -1)
    return Unpacked(q - np.int8(1), halves_at(blocks, 64))


def _ternary(packed: Bytes, count: int) -> Int8:
    """A byte is a fraction of 256 in base 3: multiplied by 3^i, its next digit overflows it."""
    powers = np.array([3**i for i in range(count)], np.uint8)[:, None]
    shifted = (packed[..., None, :] * powers).astype(np.uint16)  # the product wraps at a byte
    return (shifted * 3 >> 8).astype(np.int8) - np.int8(1)


def _nibbles(packed: Bytes) -> Bytes:
    return bits(packed, 4).reshape(len(packed), -1)


def _words(packed: Bytes) -> Uint16:
    return np.ascontiguousarray(packed).view("<u2").astype(np.uint16)


def _nibble_scales(packed: Bytes) -> Int32:
    """2 s + 1 of every nibble, the low one first: [n, items a row]."""
    return bits(packed[..., None], 4).reshape(len(packed), -1).astype(np.int32) * 2 + 1


def _signs_and_scale(packed: Bytes) -> tuple[Int8, Int32]:
    """32 bits: four signs of 7, then 4 of a sub-scale s, given as 2 s + 1."""
    words = np.ascontiguousarray(packed).view("<u4")[..., 0].astype(np.uint32)
    fields = words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & 127
    return _signs_of_7(fields), (words >> 28).astype(np.int32) * 2 + 1


def _signs_of_7(fields: Integers) -> Int8:
    """Seven signs; the eighth makes the number of negative ones even."""
    low = fields.astype(np.uint8)
    parity = low ^ low >> 4
    parity ^= parity >> 2
    parity = (parity ^ parity >> 1) & 1
    return _signs(low | parity << 7)


def _signs(packed: Integers) -> Int8:
    """1 or -1 by bit: [..., 8]."""
    ones = np.unpackbits(packed.astype(np.uint8)[..., None], axis=-1, bitorder="little").view(
        np.int8
    )
    return 1 - 2 * ones


def _grid(
    name: str, blocks: Bytes, index: Integers, signs: Int8,
    scales: Int32, factor: np.float32,
) -> Unpacked:  # fmt: skip
    n = len(blocks)
    q = codebook(name)[index].reshape(n, -1) * signs.reshape(n, -1)
    return Unpacked(q, halves_at(blocks, 0) * factor, sub_scale=scales.reshape(n, -1))


def _leaning(index: Integers, lean: Int8, scales: Int32, d: Float32) -> Unpacked:
    """Ternary vectors of 8, each weight an eighth up or down: eighths."""
    n = len(index)
    vectors = codebook("IQ1")[index].reshape(n, lean.size // n, -1) * np.int8(8)
    q = vectors + lean.reshape(n, -1, 1)
    return Unpacked(q.reshape(n, -1), d * np.float32(0.125), sub_scale=scales.reshape(n, -1))
