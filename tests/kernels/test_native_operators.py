"""Every operator of the extension against its definition, on ragged shapes and instruction sets.

Integers must be equal, so a linear differs from its definition only where NumPy's fused
multiply-add rounds twice; instruction sets must agree to the bit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from kernels.tiny_decoder import LIMITS, Shape, Work, batch_of, blocks_for, linear, lowered

from insitu.kernels.blocks import BlockType
from insitu.kernels.encode import encode
from insitu.kernels.kv_layout import KV_DTYPES, KVDtype, KVLayout
from insitu.kernels.native import Native, available_isas
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.passes import quantize_activations
from insitu.kernels.program import Program, Tensor
from insitu.kernels.reference import Reference
from insitu.kernels.run_types import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from kernels.tiny_decoder import ArrayBatch, Float32

VOCAB = 40
NUM_ROWS = 13
NUM_IN_CHUNKS = 530  # three chunks of 256 positions
KV = KVLayout(1, 1, 16, 16)
WIDE_LIMITS = replace(LIMITS, max_num_logit_rows=600)


def _embedding(width: int, seed: int = 0) -> PackedLinear:
    table = np.random.default_rng(seed).standard_normal((VOCAB, width), np.float32) * 3
    table[0, 0], table[1, -1], table[2] = 60.0, -95.0, 0.0  # exp's ends, and an all-zero row
    f32 = BlockType.F32
    return PackedLinear([Segment("table", f32, VOCAB, width, encode(f32, table))])


def _program(width: int, record: Callable[[Program, Tensor], Tensor]) -> Program:
    p = Program()
    x = record(p, p.embed(_embedding(width), p.token_ids))
    return quantize_activations(p.output(p.take(x, p.logit_rows)))


def _batch(num_tokens: int = NUM_ROWS, block_size: int = 16) -> ArrayBatch:
    rng = np.random.default_rng(7)
    tokens = rng.integers(0, VOCAB, num_tokens).astype(np.int32)
    tokens[: min(3, num_tokens)] = np.arange(min(3, num_tokens))
    blocks = blocks_for(rng, -(-num_tokens // block_size), range(60))
    return batch_of([Work(tokens, 0, num_tokens, blocks, range(num_tokens))], block_size)


def _ulps(got: Float32, wanted: Float32) -> float:
    """Greatest difference, in units of the last place of each row's greatest element."""
    unit = np.spacing(np.abs(wanted).max(axis=1, keepdims=True) + np.float32(1e-30))
    return float((np.abs(got.astype(np.float64) - wanted) / unit).max())


def _run(program: Program, batch: ArrayBatch, kv: KVLayout = KV) -> tuple[Float32, Float32]:
    """(native, reference); every instruction set and thread count gave the first."""
    wanted = Reference(program, kv).run(batch)
    results = []
    raw = [
        segment
        for op in program.ops
        if isinstance(op.weight, PackedLinear)
        for segment in op.weight.segments
    ]
    blocks = [segment.data for segment in raw]
    for isa in available_isas():
        for num_threads in (1, 3):
            for segment, data in zip(raw, blocks, strict=True):
                segment.data = data  # an earlier run released it
            engine = Native(program, kv=kv, limits=WIDE_LIMITS, num_threads=num_threads, isa=isa)
            results.append(engine.forward(batch))
            engine.close()
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return results[0], wanted


@pytest.mark.parametrize("block_type", NATIVE)
def test_embed_dequantises_exactly(block_type: BlockType) -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((VOCAB, 512), np.float32)
    segment = Segment("table", block_type, VOCAB, 512, encode(block_type, weights))
    p = Program()
    x = p.embed(PackedLinear([segment]), p.token_ids)
    program = quantize_activations(p.output(p.take(x, p.logit_rows)))
    got, wanted = _run(program, _batch())
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("width", [1, 16, 77, 576])
def test_rms_norm(width: int) -> None:
    weight = np.random.default_rng(2).standard_normal(width, np.float32)
    got, wanted = _run(_program(width, lambda p, x: p.rms_norm(x, weight, 1e-5)), _batch())
    assert _ulps(got, wanted) <= 2


@pytest.mark.parametrize("width", [2, 32, 90, 1000])
def test_gated(width: int) -> None:
    got, wanted = _run(_program(width, lambda p, x: p.gated("silu", x)), _batch())
    assert _ulps(got, wanted) <= 2


@pytest.mark.parametrize("width", [3, 100])
def test_add_of_views(width: int) -> None:
    def record(p: Program, x: Tensor) -> Tensor:
        left, right = x.split([width, width])
        return p.add(left, right)

    got, wanted = _run(_program(2 * width, record), _batch())
    assert got.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize(("head_dim", "dim"), [(16, 16), (64, 64), (48, 20), (128, 6)])
def test_rope(pairing: str, head_dim: int, dim: int) -> None:
    def record(p: Program, x: Tensor) -> Tensor:
        _, middle, _ = x.split([5, 3 * head_dim, 2])
        divisors = [1.0 + pair for pair in range(dim // 2)]
        p.rope(middle, p.rope_angles(dim, 1e6, divisors, 1.25), 3, head_dim, pairing)
        return p.add(x, x)  # columns beside the view must be untouched

    got, wanted = _run(_program(3 * head_dim + 7, record), _batch(200))
    assert _ulps(got, wanted) <= 2


@pytest.mark.parametrize("block_type", NATIVE)
@pytest.mark.parametrize(("n", "k"), [(1, 256), (33, 512), (100, 768)])
def test_linear(block_type: BlockType, n: int, k: int) -> None:
    weight = linear(np.random.default_rng(3), [block_type], [n], k, bias=True)
    got, wanted = _run(_program(k, lambda p, x: p.linear(x, weight)), _batch())
    assert _ulps(got, wanted) <= 2


def test_linear_of_mixed_segments_with_a_residual() -> None:
    types = [BlockType.Q4_K, BlockType.F16, BlockType.Q4_0, BlockType.Q6_K]
    weight = linear(np.random.default_rng(4), types, [40, 7, 96, 113], 256, bias=True)
    got, wanted = _run(_program(256, lambda p, x: p.linear(x, weight, residual=x)), _batch())
    assert _ulps(got, wanted) <= 2


def _attention(
    heads: int, kv: KVLayout, *, window: int = 0, soft_cap: float = 0.0, scale: float = 0.02
) -> Program:
    sizes = [heads * kv.head_dim, kv.num_kv_heads * kv.head_dim, kv.num_kv_heads * kv.head_dim]

    def record(p: Program, x: Tensor) -> Tensor:
        q, k, v = x.split(sizes)
        return p.attention(
            q,
            k,
            v,
            layer=0,
            num_heads=heads,
            num_kv_heads=kv.num_kv_heads,
            head_dim=kv.head_dim,
            scale=scale,
            window=window,
            soft_cap=soft_cap,
        )

    return _program(sum(sizes), record)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"),
    [(1, 1, 16), (6, 2, 48), (7, 1, 64), (3, 1, 80), (8, 1, 32), (4, 2, 96), (10, 1, 128)],
)
def test_attention(dtype: KVDtype, heads: int, kv_heads: int, head_dim: int) -> None:
    kv = KVLayout(1, kv_heads, head_dim, 16, dtype)
    got, wanted = _run(_attention(heads, kv), _batch(270), kv)
    assert _ulps(got, wanted) <= 4


@pytest.mark.parametrize("dtype", ["f16", "int8"])
@pytest.mark.parametrize("window", [0, 1, 5, 16, 37, 256, 300])
@pytest.mark.parametrize("soft_cap", [0.0, 2.5])
def test_attention_in_a_window_and_under_a_cap(
    dtype: KVDtype, window: int, soft_cap: float
) -> None:
    """Windows that begin inside a page, at its edge, and past whole chunks."""
    kv = KVLayout(1, 1, 16, 16, dtype)
    program = _attention(2, kv, window=window, soft_cap=soft_cap, scale=0.2)
    got, wanted = _run(program, _batch(NUM_IN_CHUNKS), kv)
    assert _ulps(got, wanted) <= 16


@pytest.mark.slow  # the widest heads in NumPy take a minute
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_attention_of_wide_heads(dtype: KVDtype) -> None:
    kv = KVLayout(1, 2, 256, 32, dtype)
    program = _attention(32, kv, window=200, soft_cap=30.0, scale=0.05)
    got, wanted = _run(program, _batch(530, 32), kv)
    assert _ulps(got, wanted) <= 16


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(heads=4, kv_heads=4, head_dim=64, kv_dtype="f32")]
)
def test_a_whole_decoder_is_close_to_its_definition(shape: Shape) -> None:
    """Roundings may flip a quantised activation, so close is all a deep program can promise."""
    tokens = np.random.default_rng(5).integers(0, shape.vocab, 40).astype(np.int32)
    batch = batch_of([Work(tokens, 0, 40, [5, 3, 8], (-2, -1))], shape.block_size)
    program = lowered(shape)
    wanted = Reference(program, shape.kv).run(batch)
    engine = Native(program, kv=shape.kv, limits=LIMITS, num_threads=2)
    got = engine.forward(batch)
    engine.close()
    assert np.abs(got - wanted).max() < 0.02 * wanted.std()
