"""Passes, by running the same batch before and after them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from kernels.tiny_decoder import LIMITS, Shape, program
from kernels.tiny_operators import one_sequence

from insitu.kernels.blocks import BlockType
from insitu.kernels.encode import encode
from insitu.kernels.native import Native
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.passes import (
    fuse_gated,
    fuse_quantize,
    fuse_residual,
    fuse_soft_cap,
    lower,
    quantize_activations,
)
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


Q4_K, Q8_0, F16 = BlockType.Q4_K, BlockType.Q8_0, BlockType.F16
FUSED = {
    "groups of 32": Shape(),
    "groups of 256": Shape(types=(Q4_K,) * 7),
    "floats, ragged": Shape(inner=100, hidden=64, types=(F16,) * 7),
    "int8 into floats": Shape(inner=100, types=(Q8_0,) * 5 + (F16, Q8_0)),
    "no bias, wide": Shape(inner=1056, types=(Q8_0,) * 7, bias=False),
}


@pytest.mark.parametrize("name", FUSED)
def test_lowering_keeps_every_bit_in_the_reference_and_in_kernels(name: str) -> None:
    shape = FUSED[name]
    plain = quantize_activations(program(shape))
    fused = lower(program(shape))
    assert len(fused.ops) < len(plain.ops)
    batch = one_sequence(9, shape.block_size)
    before, after = (Reference(p, shape.kv).run(batch) for p in (plain, fused))
    assert np.array_equal(before.view(np.uint32), after.view(np.uint32))
    limits = replace(LIMITS, max_num_logit_rows=33)
    for num_tokens in (1, 5, 33):
        answers = []
        for make in (quantize_activations, lower):
            engine = Native(make(program(shape)), kv=shape.kv, limits=limits, num_threads=2)
            answers.append(engine.forward(one_sequence(num_tokens, shape.block_size)).tobytes())
            engine.close()
        assert answers[0] == answers[1]


def test_a_gated_linear_replaces_both_operators_of_a_layer() -> None:
    shape = Shape()
    fused = fuse_gated(program(shape))
    assert "gated" not in kinds(fused)
    made = [op for op in fused.ops if op.attributes.get("activation") == "silu"]
    assert [op.outputs[0].width for op in made] == [shape.inner] * shape.layers


def test_halves_of_unlike_size_are_not_gated_together() -> None:
    p = Program()
    x = p.embed(weight(5, 64, BlockType.F32), p.token_ids)
    one = weight(64, 64, BlockType.Q8_0)  # a single segment: gate and up share n-blocks
    y = p.gated("silu", p.linear(x, one))
    p.output(p.take(y, p.logit_rows))
    assert kinds(fuse_gated(p)) == kinds(p)


def test_what_two_operators_read_is_not_gated_away() -> None:
    p = Program()
    x = p.embed(weight(5, 64, BlockType.F32), p.token_ids)
    both = p.linear(x, weight(32, 64, BlockType.Q8_0, BlockType.Q4_0))
    y = p.gated("silu", both)
    z = p.linear(both, weight(32, 64, BlockType.Q8_0))
    p.output(p.take(p.add(y, z), p.logit_rows))
    assert kinds(fuse_gated(p)) == kinds(p)


@pytest.mark.parametrize("types", [(Q8_0,), (BlockType.Q4_1, F16)])
def test_a_linear_caps_what_it_makes_and_keeps_every_bit(types: tuple[BlockType, ...]) -> None:
    def capped() -> Program:
        p = Program()
        x = p.take(p.embed(weight(64, 64, BlockType.F32), p.token_ids), p.logit_rows)
        p.output(p.soft_cap(p.linear(x, weight(70, 64, *types)), 1.5))
        return p

    assert "soft_cap" not in kinds(fuse_soft_cap(capped()))
    kv = Shape().kv
    for num_tokens in (1, 5, 33):
        batch, answers = one_sequence(num_tokens, kv.block_size), []
        for make in (quantize_activations, lower):
            limits = replace(LIMITS, max_num_logit_rows=33)
            with closing(Native(make(capped()), kv=kv, limits=limits, num_threads=2)) as engine:
                answers.append(engine.forward(batch).tobytes())
            answers.append(Reference(make(capped()), kv).run(batch).tobytes())
        assert answers[0] == answers[2]
        assert answers[1] == answers[3]
        assert np.abs(np.frombuffer(answers[0], np.float32)).max() <= 1.5


def test_what_two_operators_read_is_not_capped() -> None:
    p = Program()
    x = p.embed(weight(5, 64, BlockType.F32), p.token_ids)
    y = p.linear(x, weight(32, 64, BlockType.Q8_0))
    p.output(p.take(p.add(p.soft_cap(y, 2.0), y), p.logit_rows))
    assert kinds(fuse_soft_cap(p)) == kinds(p)


def test_norms_and_gated_linears_write_int8_rows_where_only_those_are_read() -> None:
    shape = Shape(types=(Q8_0,) * 7)
    fused = lower(program(shape))
    # Attention's output and the rows taken for the head are quantised by themselves.
    assert kinds(fused).count("quantize_rows") == shape.layers + 1
    norms = [op for op in fused.ops if op.kind == "rms_norm" and op.outputs[0] is not fused.pooled]
    assert [op.outputs[0].dtype for op in norms[:-1]] == [DType.Q8_G32] * 2 * shape.layers


def test_a_norm_whose_floats_are_read_too_is_left_alone() -> None:
    p = Program()
    x = p.embed(weight(5, 64, BlockType.F32), p.token_ids)
    h = p.rms_norm(x, np.ones(64, np.float32), 1e-5)
    y = p.linear(h, weight(64, 64, BlockType.Q8_0))
    p.output(p.take(p.add(y, h), p.logit_rows))
    before = quantize_activations(p)
    assert kinds(fuse_quantize(before)) == kinds(before)


def test_a_gated_linear_makes_no_groups_wider_than_its_blocks() -> None:
    fused = lower(program(Shape(types=(Q4_K,) * 7)))
    gated = [op for op in fused.ops if op.attributes.get("activation") == "silu"]
    assert gated
    assert all(op.outputs[0].dtype is DType.F32 for op in gated)


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
