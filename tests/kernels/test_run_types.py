"""What stored types run as: at no loss, decided by type alone but for one, packed one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.random_blocks import random_blocks
from kernels.test_blocks import raw_blocks
from kernels.tiny_decoder import LIMITS, Work, batch_of

from insitu.kernels.blocks import BlockType, decode
from insitu.kernels.kv_layout import KVLayout
from insitu.kernels.native import Native, native_sizes
from insitu.kernels.pack import PackedLinear, Segment, pack_segment
from insitu.kernels.passes import quantize_activations
from insitu.kernels.program import Program
from insitu.kernels.reference import Reference
from insitu.kernels.run_types import NATIVE, convert, run_type

OTHERS = [t for t in BlockType if t not in NATIVE]
KV = KVLayout(1, 1, 16, 16)


@pytest.mark.parametrize("stored", OTHERS)
@pytest.mark.parametrize("make", [raw_blocks, random_blocks])
def test_nothing_is_lost(stored: BlockType, make: object) -> None:
    raw = make(stored, 40, 768).reshape(-1)  # type: ignore[operator]
    run = run_type(stored, raw)
    assert run in NATIVE
    with np.errstate(all="ignore"):
        before, after = (
            decode(kind, data, 40, 768)
            for kind, data in ((stored, raw), (run, convert(stored, run, raw, 40, 768)))
        )
    is_nan = np.isnan(before)
    assert np.array_equal(is_nan, np.isnan(after))
    assert np.array_equal(before[~is_nan], after[~is_nan])


@pytest.mark.parametrize("native", NATIVE)
def test_what_kernels_multiply_runs_as_it_is_stored(native: BlockType) -> None:
    assert run_type(native, b"") is native


def test_powers_of_two_that_float16_lacks_take_bfloat16() -> None:
    raw = random_blocks(BlockType.MXFP4, 4, 64)
    assert run_type(BlockType.MXFP4, raw) is BlockType.Q8_0
    for byte, wanted in ((103, "BF16"), (104, "Q8_0"), (143, "Q8_0"), (144, "BF16")):
        raw[17] = byte
        assert run_type(BlockType.MXFP4, raw) is BlockType(wanted)


def program_of(*segments: Segment) -> Program:
    p = Program()
    x = p.embed(PackedLinear(segments[:1]), p.token_ids)
    y = p.linear(x, PackedLinear(segments[1:]))
    return quantize_activations(p.output(p.take(y, p.logit_rows)))


@pytest.mark.parametrize("stored", [*OTHERS, BlockType.Q5_1, BlockType.Q2_K, BlockType.Q5_K])
def test_a_stored_type_multiplies_as_its_definition_says(stored: BlockType) -> None:
    raws = [random_blocks(stored, n, 256, n) for n in (40, 33)]
    run = run_type(stored, raws[0])
    stored_as = None if run is stored else stored
    segments = [
        Segment(f"w{n}", run, n, 256, raw, stored_as) for n, raw in zip((40, 33), raws, strict=True)
    ]
    program = program_of(*segments)
    tokens = np.array([3, 39, 0, 17, 5], np.int32)
    batch = batch_of([Work(tokens, 0, 5, [0], range(5))], 16)
    wanted = Reference(program, KV).run(batch)
    packed = pack_segment(segments[1]).tobytes()
    before = native_sizes(program, KV, LIMITS, 2)
    native = Native(program, kv=KV, limits=LIMITS, num_threads=2)
    try:
        got = native.forward(batch)
        assert native.sizes == before
        assert native.packed(program.ops[-2].weight, 0) == packed
    finally:
        native.close()
    assert np.abs(got - wanted).max() <= 2 * np.spacing(np.abs(wanted).max())
    with pytest.raises(ValueError, match="released"):
        segments[1].raw()


def test_a_linear_whose_blocks_are_gone_is_not_run() -> None:
    segments = [
        Segment(f"w{n}", BlockType.F32, n, 32, random_blocks(BlockType.F32, n, 32))
        for n in (40, 33)
    ]
    program = program_of(*segments)
    segments[1].data = None
    native = Native(program, kv=KV, limits=LIMITS, num_threads=1)
    batch = batch_of([Work(np.array([3], np.int32), 0, 1, [0], range(1))], 16)
    with pytest.raises(ValueError, match="no weights"):
        native.forward(batch)
    native.close()
