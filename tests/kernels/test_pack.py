"""PackedLinear's promises, and the packed layout read back place by place."""

from __future__ import annotations

import numpy as np
import pytest

from insitu.kernels.blocks import BlockType, unpack
from insitu.kernels.native import packed_bytes
from insitu.kernels.pack import PackedLinear, Segment, pack_segment
from insitu.kernels.run_types import NATIVE


def segment(block_type: BlockType, n: int, k: int, name: str = "w") -> Segment:
    rng = np.random.default_rng(n * k)
    raw = rng.integers(0, 256, n * block_type.row_bytes(k), dtype=np.uint8)
    return Segment(name, block_type, n, k, raw)


@pytest.mark.parametrize("block_type", NATIVE)
@pytest.mark.parametrize("n", [32, 45, 7])
def test_packed_size_is_what_native_takes(block_type: BlockType, n: int) -> None:
    one = segment(block_type, n, 512)
    assert pack_segment(one).size == packed_bytes(PackedLinear([one]))


@pytest.mark.parametrize("block_type", [BlockType.Q4_0, BlockType.Q4_1])
def test_a_nibble_is_where_the_drawing_says(block_type: BlockType) -> None:
    n, k = 45, 64
    one = segment(block_type, n, k)
    q = unpack(block_type, one.raw(), n, k).q + (8 if block_type is BlockType.Q4_0 else 0)
    tail = 64 if block_type is BlockType.Q4_0 else 128
    blocks = pack_segment(one).reshape(2, k // 32, 512 + tail)
    for row, column in [(0, 0), (3, 5), (17, 30), (31, 63), (32, 36), (44, 11)]:
        output, input_ = row % 32, column % 32
        at = input_ // 8 * 128 + output // 16 * 64 + output % 16 * 4 + input_ % 4
        byte = blocks[row // 32, column // 32, at]
        assert (byte >> 4 if input_ % 8 >= 4 else byte & 15) == q[row, column]
    assert not blocks[1, :, 64 * 1 - 12 : 64].any()  # outputs 13..15 of the last block: past n


def test_wide_weights_are_unsigned_and_their_scales_follow() -> None:
    n, k = 32, 64
    one = segment(BlockType.Q8_0, n, k)
    parts = unpack(BlockType.Q8_0, one.raw(), n, k)
    blocks = pack_segment(one).reshape(k // 32, 1024 + 64)
    at = 9 // 4 * 128 + 20 // 16 * 64 + 20 % 16 * 4 + 9 % 4
    assert int(blocks[1, at]) == int(parts.q[20, 32 + 9]) + 128
    scales = blocks[:, 1024:].copy().view(np.float16).astype(np.float32)
    assert np.array_equal(scales.T, parts.d, equal_nan=True)


def test_floats_are_stored_outputs_side_by_side() -> None:
    weights = np.arange(40 * 6, dtype=np.float32).reshape(40, 6)
    packed = pack_segment(Segment("w", BlockType.F32, 40, 6, weights.view(np.uint8).reshape(-1)))
    blocks = packed.view(np.float32).reshape(2, 6, 32)
    assert np.array_equal(blocks[0], weights[:32].T)
    assert np.array_equal(blocks[1, :, :8], weights[32:].T)
    assert not blocks[1, :, 8:].any()


def test_a_linear_sums_up_its_segments() -> None:
    types = (BlockType.Q4_K, BlockType.Q8_0, BlockType.Q6_K, BlockType.F16)
    linear = PackedLinear([segment(t, 3, 256, t.value) for t in types], np.zeros(12, np.float32))
    assert (linear.n, linear.k, linear.name) == (12, 256, "Q4_K+Q8_0+Q6_K+F16")
    assert linear.groups == (256, 32, 0)  # each once, in the order of need


def test_a_released_linear_keeps_its_shape_but_not_its_bytes() -> None:
    linear = PackedLinear([segment(BlockType.Q4_0, 2, 32)])
    linear.release()
    assert (linear.n, linear.k) == (2, 32)
    with pytest.raises(ValueError, match="w: its blocks were released"):
        pack_segment(linear.segments[0])


def test_wrong_shapes_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"w: Q4_0 \[2, 32\] takes 36 bytes, not 35"):
        Segment("w", BlockType.Q4_0, 2, 32, bytes(35))
    a, b = segment(BlockType.Q4_0, 2, 32, "a"), segment(BlockType.Q4_0, 2, 64, "b")
    with pytest.raises(ValueError, match=r"one k: a \[2, 32\], b \[2, 64\]"):
        PackedLinear([a, b])
    with pytest.raises(ValueError, match="none given"):
        PackedLinear([])
    with pytest.raises(ValueError, match=r"a: bias \(3,\) for 2 outputs"):
        PackedLinear([a], np.zeros(3, np.float32))
