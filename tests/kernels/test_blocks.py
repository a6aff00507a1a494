"""Block layouts against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from insitu.kernels.assemble import assemble, can_assemble
from insitu.kernels.blocks import FLOATS, BlockType, decode, unpack
from insitu.kernels.codebooks import codebook
from insitu.kernels.encode import encode

IN_FILES = [t for t in BlockType if t is not BlockType.Q8_K16]
QUANTISED = [t for t in BlockType if t not in FLOATS]
ENCODED = [t for t in QUANTISED if can_assemble(t)]


def theirs(block_type: BlockType, raw: np.ndarray, n: int, k: int) -> np.ndarray:
    if block_type is BlockType.F32:
        return raw.reshape(-1).view(np.float32).reshape(n, k)
    if block_type is BlockType.F16:
        return raw.reshape(-1).view(np.float16).astype(np.float32).reshape(n, k)
    kind = gguf.GGMLQuantizationType[block_type.value]
    return gguf.quants.dequantize(raw.reshape(n, -1), kind).astype(np.float32)


def raw_blocks(block_type: BlockType, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Any bytes at all: scales of every sign and size, NaN and Inf among them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, block_type.row_bytes(k)), dtype=np.uint8)


@pytest.mark.parametrize("block_type", IN_FILES)
def test_decoded_bits_are_those_of_the_format(block_type: BlockType) -> None:
    raw = raw_blocks(block_type, 40, 768)
    with np.errstate(all="ignore"):
        ours, expected = decode(block_type, raw, 40, 768), theirs(block_type, raw, 40, 768)
    is_nan = np.isnan(expected)
    assert np.array_equal(is_nan, np.isnan(ours))
    assert np.array_equal(ours[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))


@pytest.mark.parametrize("block_type", IN_FILES)
def test_sizes_are_those_of_the_format(block_type: BlockType) -> None:
    kind = gguf.GGMLQuantizationType[block_type.value]
    assert (block_type.block_size, block_type.block_bytes) == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize(
    ("block_type", "error"),
    [
        (BlockType.F32, 0.0),
        (BlockType.F16, 6e-4),
        (BlockType.BF16, 4e-3),
        (BlockType.Q8_0, 0.008),
        (BlockType.Q6_K, 0.03),
        (BlockType.Q5_0, 0.06),
        (BlockType.Q4_1, 0.1),
        (BlockType.Q4_K, 0.1),
        (BlockType.Q4_0, 0.12),
        (BlockType.Q5_1, 0.05),
        (BlockType.Q5_K, 0.05),
        (BlockType.Q2_K, 0.4),
        (BlockType.Q8_K16, 0.006),
    ],
)
def test_encoding_is_close(block_type: BlockType, error: float) -> None:
    weights = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    weights[0] = 0
    back = decode(block_type, encode(block_type, weights), 8, 512)
    assert np.sqrt(np.mean((back - weights) ** 2)) <= error
    assert not back[0].any()


@pytest.mark.parametrize("block_type", ENCODED)
def test_encoding_what_was_decoded_changes_little(block_type: BlockType) -> None:
    weights = np.random.default_rng(2).standard_normal((4, 256)).astype(np.float32)
    once = decode(block_type, encode(block_type, weights), 4, 256)
    twice = decode(block_type, encode(block_type, once), 4, 256)
    assert np.abs(twice - once).max() <= np.abs(once - weights).max()


@pytest.mark.parametrize("block_type", QUANTISED)
def test_integers_have_the_range_of_the_format(block_type: BlockType) -> None:
    bounds = {
        **dict.fromkeys(("Q8_0", "Q8_K16"), (-128, 127)),
        **dict.fromkeys(("Q5_1", "Q5_K"), (0, 31)),
        **dict.fromkeys(("IQ4_NL", "IQ4_XS"), (-127, 113)),
        **dict.fromkeys(("IQ2_XXS", "IQ2_XS", "IQ2_S"), (-43, 43)),
        **dict.fromkeys(("IQ1_S", "IQ1_M"), (-9, 9)),
        **dict.fromkeys(("TQ1_0",), (-1, 1)),
        "TQ2_0": (-1, 2),
        "Q2_K": (0, 3),
        "Q3_K": (-4, 3),
        "MXFP4": (-12, 12),
        "IQ3_XXS": (-62, 62),
        "IQ3_S": (-15, 15),
        "Q5_0": (-16, 15),
        "Q4_0": (-8, 7),
        "Q6_K": (-32, 31),
    }
    low, high = bounds.get(block_type.value, (0, 15))
    q = unpack(block_type, raw_blocks(block_type, 64, 512), 64, 512).q
    assert (q.min(), q.max()) == (low, high)


@pytest.mark.parametrize("block_type", ENCODED)
def test_what_was_taken_apart_can_be_put_together(block_type: BlockType) -> None:
    raw = raw_blocks(block_type, 40, 768, seed=3)
    with np.errstate(all="ignore"):
        parts = unpack(block_type, raw, 40, 768)
        again = unpack(block_type, assemble(block_type, parts), 40, 768)
    for name in ("q", "d", "m", "sub_scale", "dmin", "sub_min"):
        before, after = getattr(parts, name), getattr(again, name)
        assert (before is None) == (after is None)
        if before is not None:
            assert np.array_equal(before, after, equal_nan=before.dtype == np.float32), name


def test_our_own_type_is_its_formula() -> None:
    raw = raw_blocks(BlockType.Q8_K16, 2, 512, seed=4)
    raw.reshape(2, 2, 276)[:, :, 3] = 0x3C  # about 0.01
    got = decode(BlockType.Q8_K16, raw, 2, 512)
    for row, column in [(0, 0), (0, 17), (1, 255), (1, 256), (1, 511)]:
        block = raw.reshape(2, 2, 276)[row, column // 256]
        d = block[:4].copy().view(np.float32)[0]
        scale, q = (
            block.view(np.int8)[4 + column % 256 // 16],
            block.view(np.int8)[20 + column % 256],
        )
        assert got[row, column] == d * np.float32(scale) * np.float32(q)


def test_a_codebook_that_is_none_is_an_error() -> None:
    with pytest.raises(KeyError):
        codebook("IQ9")


def test_part_blocks_and_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="not a multiple of 256"):
        BlockType.Q4_K.row_bytes(288)
    with pytest.raises(ValueError, match="takes 68 bytes, not 67"):
        decode(BlockType.Q8_0, bytes(67), 1, 64)
    with pytest.raises(ValueError, match="has no blocks"):
        unpack(BlockType.F32, bytes(128), 1, 32)


def test_activation_groups_follow_the_type_alone() -> None:
    groups = {t.value: t.activation_group for t in BlockType}
    assert groups == {
        **dict.fromkeys((t.value for t in BlockType if t.block_size == 256), 256),
        **dict.fromkeys(("F32", "F16", "BF16"), 0),
        **dict.fromkeys(("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"), 32),
    }
