"""Passes, by running the same batch before and after them."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.tiny_decoder import Shape, program
from kernels.tiny_operators import one_sequence

from insitu.kernels.blocks import BlockType, encode
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.passes import fuse_residual, quantize_activations
from insitu.kernels.program import DType, Program
from insitu.kernels.reference import Reference


def kinds(p: Program) -> list[str]:
    return [op.kind for op in p.ops]


@pytest.mark.parametrize("quantised", [False, True])
def test_fused_residuals_keep_every_bit(quantised: bool) -> None:
    shape = Shape()
    plain = program(shape)
    fused = fuse_residual(plain)
    assert kinds(plain).count("add") == 2 * shape.layers
    assert "add" not in kinds(fused)
    if quantised:
        plain, fused = quantize_activations(plain), quantize_activations(fused)
    batch = one_sequence(9, shape.block_size)
    before, after = (Reference(p, shape.kv).run(batch) for p in (plain, fused))
    assert np.array_equal(before.view(np.uint32), after.view(np.uint32))


def weight(n: int, k: int, *types: BlockType) -> PackedLinear:
    values = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    return PackedLinear([Segment(t.value, t, n, k, encode(t, values)) for t in types])


def test_a_linear_that_something_else_reads_is_left_alone() -> None:
    p = Program()
    x = p.embed(weight(5, 32, BlockType.F32), p.token_ids)
    y = p.linear(x, weight(32, 32, BlockType.F32))
    p.output(p.take(p.add(p.add(x, y), y), p.logit_rows))
    assert kinds(fuse_residual(p)).count("add") == 2


def test_a_linear_is_not_moved_over_other_operators() -> None:
    p = Program()
    x = p.embed(weight(5, 32, BlockType.F32), p.token_ids)
    y = p.linear(x, weight(32, 32, BlockType.F32))
    z = p.rms_norm(x, np.ones(32, np.float32), 1e-5)
    p.output(p.take(p.add(z, y), p.logit_rows))
    assert kinds(fuse_residual(p)) == kinds(p)


def test_each_tensor_is_quantised_once_per_group_that_occurs() -> None:
    p = Program()
    x = p.embed(weight(5, 256, BlockType.F32), p.token_ids)
    mixed = weight(16, 256, BlockType.Q6_K, BlockType.Q4_0, BlockType.Q8_0, BlockType.F16)
    y = p.linear(x, mixed)
    z = p.linear(x, weight(64, 256, BlockType.Q4_1))
    p.output(p.take(p.add(y, z), p.logit_rows))
    after = quantize_activations(p)
    assert kinds(after) == [
        "embed",
        "quantize_rows",
        "quantize_rows",
        "linear",
        "linear",
        "add",
        "take",
    ]
    first, second = (op for op in after.ops if op.kind == "linear")
    assert first.attributes["groups"] == (256, 32, 0)
    assert [t.dtype for t in first.inputs] == [DType.Q8_G256, DType.Q8_G32, DType.F32]
    assert second.inputs[0] is first.inputs[1]
    assert after.is_quantized
    assert not p.is_quantized
    assert kinds(p).count("quantize_rows") == 0


def test_a_form_is_made_anew_after_its_tensor_changed_in_place() -> None:
    p = Program()
    x = p.embed(weight(5, 64, BlockType.F32), p.token_ids)
    a = p.linear(x, weight(64, 64, BlockType.Q8_0))
    p.rope(x, p.rope_angles(16, 1e4), 4, 16, "halves")
    b = p.linear(x, weight(64, 64, BlockType.Q8_0))
    p.output(p.take(p.add(a, b), p.logit_rows))
    assert kinds(quantize_activations(p)).count("quantize_rows") == 2


def test_quantised_activations_stay_near_the_float_definition() -> None:
    shape = Shape(types=(BlockType.Q8_0,) * 7)
    batch = one_sequence(12, shape.block_size)
    plain = program(shape)
    exact = Reference(plain, shape.kv).run(batch)
    near = Reference(quantize_activations(plain), shape.kv).run(batch)
    assert not np.array_equal(exact, near)
    assert np.abs(exact - near).max() < 0.05 * exact.std() * 3
