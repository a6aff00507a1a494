"""Block layouts against the `gguf` package, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from insitu.kernels.blocks import BlockType, decode, encode, unpack

QUANTISED = [t for t in BlockType if t.block_size > 1]


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


@pytest.mark.parametrize("block_type", BlockType)
def test_decoded_bits_are_those_of_the_format(block_type: BlockType) -> None:
    raw = raw_blocks(block_type, 40, 768)
    with np.errstate(all="ignore"):
        ours, expected = decode(block_type, raw, 40, 768), theirs(block_type, raw, 40, 768)
    is_nan = np.isnan(expected)
    assert np.array_equal(is_nan, np.isnan(ours))
    assert np.array_equal(ours[~is_nan].view(np.uint32), expected[~is_nan].view(np.uint32))


@pytest.mark.parametrize("block_type", BlockType)
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
    ],
)
def test_encoding_is_close(block_type: BlockType, error: float) -> None:
    weights = np.random.default_rng(1).standard_normal((8, 512)).astype(np.float32)
    weights[0] = 0
    back = decode(block_type, encode(block_type, weights), 8, 512)
    assert np.sqrt(np.mean((back - weights) ** 2)) <= error
    assert not back[0].any()


@pytest.mark.parametrize("block_type", QUANTISED)
def test_encoding_what_was_decoded_changes_little(block_type: BlockType) -> None:
    weights = np.random.default_rng(2).standard_normal((4, 256)).astype(np.float32)
    once = decode(block_type, encode(block_type, weights), 4, 256)
    twice = decode(block_type, encode(block_type, once), 4, 256)
    assert np.abs(twice - once).max() <= np.abs(once - weights).max()


@pytest.mark.parametrize("block_type", QUANTISED)
def test_integers_have_the_range_of_the_format(block_type: BlockType) -> None:
    bounds = {"Q8_0": (-128, 127), "Q5_0": (-16, 15), "Q4_0": (-8, 7), "Q6_K": (-32, 31)}
    low, high = bounds.get(block_type.value, (0, 15))
    q = unpack(block_type, raw_blocks(block_type, 64, 512), 64, 512).q
    assert (q.min(), q.max()) == (low, high)


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
        **dict.fromkeys(("F32", "F16", "BF16"), 0),
        **dict.fromkeys(("Q8_0", "Q4_0", "Q4_1", "Q5_0"), 32),
        **dict.fromkeys(("Q4_K", "Q6_K"), 256),
    }
