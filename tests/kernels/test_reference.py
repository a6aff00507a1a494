"""The definition against plain formulas, and the extension against the definition.

Before quantisation the reference is held to textbook formulas in float64; after it, native must
agree: integers equal, floats within 2 ulp (NumPy has no fused multiply-add).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from kernels.tiny_decoder import Shape, lowered, program
from kernels.tiny_operators import ints, one_sequence, over_rows

from insitu.kernels import reference_math as maths
from insitu.kernels.blocks import BlockType, decode
from insitu.kernels.encode import encode
from insitu.kernels.kv_layout import KV_DTYPES, KVDtype, KVLayout
from insitu.kernels.native import Limits, Native, available_isas
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.passes import lower, quantize_activations
from insitu.kernels.reference import Reference
from insitu.kernels.run_types import NATIVE
from insitu.models.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from insitu.kernels.program import Program, Tensor

    Float32 = npt.NDArray[np.float32]

LIMITS = Limits(
    max_num_tokens=320,
    max_num_logit_rows=320,
    max_num_seqs=1,
    num_blocks=32,
    max_blocks_per_seq=32,
)
KV = KVLayout(num_layers=1, num_kv_heads=2, head_dim=16, block_size=16)


def floats(rows: int, width: int, seed: int = 0) -> Float32:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32) * 3


def run(p: Program, num_rows: int, kv: KVLayout = KV) -> Float32:
    return Reference(p, kv).run(one_sequence(num_rows, kv.block_size))


def run_native(p: Program, num_rows: int, kv: KVLayout = KV, isa: str | None = None) -> Float32:
    engine = Native(p, kv=kv, limits=LIMITS, num_threads=2, isa=isa)
    try:
        return engine.forward(one_sequence(num_rows, kv.block_size))
    finally:
        engine.close()


def linear_of(block_type: BlockType, n: int, k: int, **more: object) -> PackedLinear:
    data = encode(block_type, floats(n, k, seed=n + k) / np.float32(np.sqrt(k)))
    return PackedLinear([Segment("w", block_type, n, k, data)], **more)  # type: ignore[arg-type]


OPERATORS: dict[str, Callable[[Program, Tensor], Tensor]] = {
    "rms_norm": lambda p, x: p.rms_norm(x, floats(1, x.width)[0], 1e-5),
    "gated": lambda p, x: p.gated("silu", x),
    "add": lambda p, x: p.add(x, p.rms_norm(x, np.ones(x.width, np.float32), 1e-5)),
    "halves": lambda p, x: p.rope(x, p.rope_angles(16, 1e4), x.width // 16, 16, "halves"),
    "adjacent": lambda p, x: p.rope(
        x, p.rope_angles(16, 5e5, [4.0] * 8, 1.5), x.width // 16, 16, "adjacent"
    ),
    "part of a head": lambda p, x: p.rope(x, p.rope_angles(8, 1e4), x.width // 16, 16, "halves"),
}


def assert_within_ulps(actual: Float32, expected: Float32, ulps: float = 2.0) -> None:
    """Within ulps of the larger of the value and its row's usual size (sums may cancel)."""
    size = np.maximum(np.abs(expected), np.abs(expected).mean(axis=1, keepdims=True))
    distance = np.abs(actual.astype(np.float64) - expected) / np.spacing(size.astype(np.float32))
    assert distance.max() <= ulps


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("operator", OPERATORS)
def test_native_operators_agree_with_the_definition(operator: str, isa: str) -> None:
    p = quantize_activations(over_rows(floats(40, 96), OPERATORS[operator]))
    expected = run(p, 40)
    assert_within_ulps(run_native(p, 40, isa=isa), expected)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("block_type", NATIVE)
@pytest.mark.parametrize("num_rows", [1, 7])
def test_native_products_agree_with_the_definition(
    block_type: BlockType, num_rows: int, isa: str
) -> None:
    n, k = 45, 512
    bias = floats(1, n)[0]
    weight = linear_of(block_type, n, k, bias=bias)
    x = floats(num_rows, k, seed=9)
    p = quantize_activations(over_rows(x, lambda p, t: p.linear(t, weight)))
    expected = run(p, num_rows)
    assert_within_ulps(run_native(p, num_rows, isa=isa), expected)


@pytest.mark.parametrize("block_type", NATIVE)
def test_native_embeds_the_formats_bits(block_type: BlockType) -> None:
    weight = linear_of(block_type, 37, 512)
    p = quantize_activations(over_rows(floats(37, 1), lambda p, _: p.embed(weight, p.token_ids)))
    expected = decode(block_type, weight.segments[0].raw(), 37, 512)
    assert np.array_equal(run(p, 37), expected)
    assert np.array_equal(run_native(p, 37), expected)


@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_whole_decoder_agrees_with_the_definition(dtype: KVDtype) -> None:
    shape = Shape(kv_dtype=dtype)
    p = lowered(shape)
    expected = run(p, 60, shape.kv)
    assert_within_ulps(run_native(p, 60, shape.kv), expected, ulps=4000)


@pytest.mark.parametrize("num_tokens", [5, 300])
def test_native_attention_agrees_with_the_definition(num_tokens: int) -> None:
    # Over 256 tokens the last rows merge two chunks.
    p = quantize_activations(over_rows(floats(num_tokens, 128), attend))
    limits_ulps = 16  # a weight near 0 carries the error of exp's argument
    expected = run(p, num_tokens)
    assert_within_ulps(run_native(p, num_tokens), expected, limits_ulps)


def attend(p: Program, x: Tensor, window: int = 0, soft_cap: float = 0.0) -> Tensor:
    q, k, v = x.split([64, 32, 32])
    heads = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    return p.attention(q, k, v, layer=0, **heads, scale=0.25, window=window, soft_cap=soft_cap)


@pytest.mark.parametrize("in_kernel_order", [False, True])
@pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (7, 0.0), (0, 1.5), (260, 3.0)])
def test_attention_is_softmax_over_what_came_before(
    in_kernel_order: bool, window: int, soft_cap: float
) -> None:
    num_tokens = 270
    x = floats(num_tokens, 128) / np.float32(2)
    p = over_rows(x, lambda p, x: attend(p, x, window, soft_cap))
    kv = KVLayout(1, 2, 16, 16, "f32")
    got = run(quantize_activations(p) if in_kernel_order else p, num_tokens, kv)
    wide = x.astype(np.float64)
    q = wide[:, :64].reshape(-1, 4, 16)
    k, v = (np.repeat(wide[:, at : at + 32].reshape(-1, 2, 16), 2, axis=1) for at in (64, 96))
    for row in (0, 1, 255, 256, 269):
        seen = slice(max(0, row + 1 - window) if window else 0, row + 1)
        scores = np.einsum("hd,thd->ht", q[row], k[seen]) * 0.25
        scores = soft_cap * np.tanh(scores / soft_cap) if soft_cap else scores
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = np.einsum("ht,thd->hd", weights, v[seen]).reshape(-1)
        assert np.allclose(got[row], expected, atol=2e-5)


@pytest.mark.parametrize("in_kernel_order", [False, True])
def test_norm_gate_and_rotation_are_their_formulas(in_kernel_order: bool) -> None:
    x = floats(12, 96)
    wide = x.astype(np.float64)
    weight = floats(1, 96)[0]
    gate = wide[:, :48]
    angle = np.arange(12)[:, None] / 4.0 * 5e5 ** (-np.arange(8) / 8)
    turned = (wide.reshape(12, 6, 8, 2) * [1, 1j]).sum(axis=3) * np.exp(1j * angle)[:, None] * 1.5
    mean = (wide**2).mean(axis=1, keepdims=True)
    expected = {
        "rms_norm": wide / np.sqrt(mean + 1e-5) * weight,
        "gated": gate / (1 + np.exp(-gate)) * wide[:, 48:],
        "adjacent": np.stack([turned.real, turned.imag], axis=3).reshape(12, 96),
    }
    for name, value in expected.items():
        p = over_rows(x, OPERATORS[name])
        got = run(quantize_activations(p) if in_kernel_order else p, 12)
        assert np.allclose(got, value, rtol=1e-5, atol=1e-5), name


def test_rotation_leaves_dims_beyond_its_own_alone() -> None:
    x = floats(9, 32)
    got = run(over_rows(x, OPERATORS["part of a head"]), 9).reshape(9, 2, 16)
    assert np.array_equal(got[:, :, 8:], x.reshape(9, 2, 16)[:, :, 8:])
    assert not np.array_equal(got[1:, :, :8], x.reshape(9, 2, 16)[1:, :, :8])


@pytest.mark.parametrize("block_type", NATIVE)
def test_the_numeric_product_is_near_the_float_one(block_type: BlockType) -> None:
    weight, x = linear_of(block_type, 32, 512), floats(5, 512)
    p = over_rows(x, lambda p, t: p.linear(t, weight))
    plain, numeric = run(p, 5), run(quantize_activations(p), 5)
    assert np.abs(plain - numeric).max() < 0.03 * np.abs(plain).max()


def test_quantised_rows_are_nearest_and_their_scales_of_the_row_alone() -> None:
    x = floats(6, 256)
    x[1] = 0
    x[2, :32] *= 100
    quantised = maths.quantize(x, 32)
    assert np.abs(quantised.q).max(axis=1).tolist() == [127, 0, 127, 127, 127, 127]
    back = quantised.q.reshape(6, 8, 32) * quantised.scale[:, :, None]
    assert np.all(
        np.abs(back.reshape(6, 256) - x) <= np.repeat(quantised.scale, 32, axis=1) * 0.501
    )
    alone = maths.quantize(x[2:3], 32)
    assert np.array_equal(alone.q[0], quantised.q[2])
    assert np.array_equal(alone.scale[0], quantised.scale[2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("block_type", [BlockType.Q8_0, BlockType.Q4_1, BlockType.Q6_K])
def test_what_is_not_finite_reaches_its_own_row_only(block_type: BlockType, bad: float) -> None:
    weight, x = linear_of(block_type, 32, 512), floats(3, 512)
    clean = over_rows(x, lambda p, t: p.linear(t, weight))
    x[1, 77] = bad
    p = over_rows(x, lambda p, t: p.linear(t, weight))
    before, after = (run(quantize_activations(q), 3) for q in (clean, p))
    assert np.isnan(after[1]).all()
    assert np.array_equal(after[[0, 2]], before[[0, 2]])
    assert np.isnan(run_native(quantize_activations(p), 3)[1]).all()


def test_a_batch_changes_no_row() -> None:
    shape = Shape()
    p = lower(program(shape))
    alone = run(p, 20, shape.kv)
    ids = ints(range(20))
    slots = np.concatenate([ids, ids + 64], dtype=np.int32)
    both = Batch(
        token_ids=np.concatenate([ids, ids[::-1]]),
        positions=np.concatenate([ids, ids]),
        slot_mapping=slots,
        block_table=np.array([[0, 1], [4, 5]], np.int32),
        query_start_loc=ints([0, 20, 40]),
        seq_lens=ints([20, 20]),
        logit_rows=ints(range(20)),
    )
    assert np.array_equal(Reference(p, shape.kv).run(both), alone)


def test_chunks_of_a_prompt_equal_the_whole() -> None:
    shape = Shape()
    p = lower(program(shape))
    whole = run(p, 40, shape.kv)
    reference, parts = Reference(p, shape.kv), []
    for begin, end in [(0, 17), (17, 18), (18, 40)]:
        ids = ints(range(begin, end))
        parts.append(
            reference.run(
                Batch(
                    token_ids=ids,
                    positions=ids,
                    slot_mapping=ids,
                    block_table=ints(range(3))[None],
                    query_start_loc=ints([0, end - begin]),
                    seq_lens=ints([end]),
                    logit_rows=ints(range(end - begin)),
                )
            )
        )
    assert np.array_equal(np.concatenate(parts), whole)


def test_our_exp_is_within_two_ulps() -> None:
    x = np.linspace(-87, 88, 200001, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(maths.exp(x) - exact) / np.spacing(exact.astype(np.float32))) <= 2
    assert maths.exp(np.array([-1e30, 89, np.nan], np.float32))[1] == np.inf


def test_stored_halves_saturate() -> None:
    x = np.array([1e30, -7e4, 65519, np.nan, np.inf, 1 + 2**-11], np.float32)
    assert maths.store_f16(x).tolist()[:3] == [65504, -65504, 65504]
    assert np.isnan(maths.store_f16(x)[3])
    assert maths.store_f16(x)[4] == np.inf
    assert maths.store_f16(x)[5] == 1  # ties to even


def test_tanh_is_close_everywhere_and_keeps_its_sign() -> None:
    x = np.concatenate([np.linspace(-12, 12, 20001), [1e-30, -1e-7, 0.0, 1e30, -np.inf]])
    got = maths.tanh(x.astype(np.float32))
    expected = np.tanh(x.astype(np.float32).astype(np.float64))
    assert (np.abs(got - expected) <= 4 * np.spacing(np.abs(expected).astype(np.float32))).all()
    assert np.isnan(maths.tanh(np.array([np.nan], np.float32)))[0]


def test_bf16_is_nearest_even_and_keeps_nan_and_infinity() -> None:
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, np.inf, -np.inf, 2**-133], np.float32)
    assert maths.round_bf16(x).tolist() == [1, 1 + 2**-6, np.inf, np.inf, -np.inf, 2**-133]
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(maths.round_bf16(nan)).all()
