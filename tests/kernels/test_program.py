"""Shape rules while recording, and the memory plan's promise that nothing alive overlaps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.tiny_decoder import Shape, lowered, program

from insitu.kernels.blocks import BlockType
from insitu.kernels.memory import ALIGNMENT, MemoryPlan, plan_memory, quantized_bytes
from insitu.kernels.ops import ShapeError
from insitu.kernels.pack import Experts, PackedLinear, Segment
from insitu.kernels.program import DType, Program, Rows, Tensor


def weight(n: int, k: int) -> PackedLinear:
    return PackedLinear([Segment("w", BlockType.F32, n, k, bytes(4 * n * k))])


def start() -> tuple[Program, Tensor]:
    p = Program()
    return p, p.embed(weight(10, 64), p.token_ids)


def test_outputs_have_the_shapes_of_the_operators() -> None:
    p, x = start()
    assert (x.rows, x.width, x.dtype) == (Rows.TOKENS, 64, DType.F32)
    q, k, v = p.linear(x, weight(96, 64)).split([64, 16, 16])
    assert (q.column, k.column, v.column) == (0, 64, 80)
    assert q.owner is k.owner is v.owner
    inner = v.split([4, 12])[1]  # a view of a view is a view of the owner
    assert (inner.owner, inner.column) == (v.owner, 84)
    a = p.attention(q, k, v, layer=0, num_heads=4, num_kv_heads=1, head_dim=16, scale=0.25)
    y = p.gated("silu", p.add(a, x))
    rows = p.take(y, p.logit_rows)
    assert (y.width, rows.rows, rows.width) == (32, Rows.LOGITS, 32)
    assert p.output(rows).logits is rows


MIXTURE = Experts((weight(16, 64), weight(16, 64)), (weight(64, 9), weight(64, 9)))
Mistake = Callable[[Program, Tensor], object]
MISTAKES: dict[str, Mistake] = {
    "linear w": lambda p, x: p.linear(x, weight(8, 32)),
    "linear w(embed_0": lambda p, x: p.linear(x, weight(8, 64), residual=x),
    "rms_norm": lambda p, x: p.rms_norm(x, np.ones(63, np.float32), 1e-5),
    "rms_norm(embed_0 [tokens, 64] f32): eps": lambda p, x: p.rms_norm(
        x, np.ones(64, np.float32), 0.0
    ),
    "split": lambda _, x: x.split([32, 31]),
    "split(embed_0 [tokens, 64] f32): sizes (64, 0)": lambda _, x: x.split([64, 0]),
    "rope_angles": lambda p, _: p.rope_angles(7, 1e4),
    "rope_angles(positions": lambda p, _: p.rope_angles(8, -1.0),
    "rope_angles(positions [tokens, 1] i32): needs a divisor": lambda p, _: p.rope_angles(
        8, 1e4, [1.0]
    ),
    "rope(": lambda p, x: p.rope(x, p.rope_angles(32, 1e4), 4, 16, "halves"),
    "rope(embed_0": lambda p, x: p.rope(x, p.rope_angles(16, 1e4), 4, 16, "pairs"),
    "attention": lambda p, x: p.attention(
        x, x, x, layer=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0
    ),
    "gated": lambda p, x: p.gated("tanh", x),
    "activate": lambda p, x: p.activate("relu", x),
    "layer_norm": lambda p, x: p.layer_norm(
        x, np.ones(64, np.float32), np.ones(63, np.float32), 1e-5
    ),
    "scale": lambda p, x: p.scale(x, float("inf")),
    "soft_cap": lambda p, x: p.soft_cap(x, 0.0),
    "gate_rows": lambda p, x: p.gate_rows(x, x),
    "route": lambda p, x: p.route(x, 65, is_normalised=True),
    "experts": lambda p, x: p.experts("silu", x, x, MIXTURE, 1),
    "experts(embed_0": lambda p, x: p.experts("silu", x, x.split([2, 62])[0], MIXTURE, 1),
    "add": lambda p, x: p.add(x, p.gated("silu", x)),
    "take": lambda p, x: p.take(x, x),
    "embed": lambda p, x: p.embed(weight(4, 4), x),
    "output": lambda p, x: p.output(x),
}


@pytest.mark.parametrize("named", MISTAKES)
def test_a_mistake_is_refused_naming_the_operator(named: str) -> None:
    p, x = start()
    with pytest.raises(ShapeError) as refused:
        MISTAKES[named](p, x)
    assert str(refused.value).startswith(named)
    assert "embed_0" in str(refused.value) or "positions" in str(refused.value)
    assert all(op.kind in ("embed", "rope_angles", "gated") for op in p.ops)


def assert_nothing_alive_overlaps(p: Program, plan: MemoryPlan, tokens: int, rows: int) -> None:
    last_use: dict[Tensor, int] = {}
    for index, op in enumerate(p.ops):
        for tensor in (*op.inputs, *op.outputs):
            last_use[tensor.owner] = index
    assert p.logits is not None
    last_use[p.logits.owner] = len(p.ops)

    def span(tensor: Tensor) -> tuple[int, int]:
        count = tokens if tensor.rows is Rows.TOKENS else rows
        group = {DType.Q8_G32: 32, DType.Q8_G256: 256}.get(tensor.dtype)
        size = count * tensor.width * 4
        if group:
            size = quantized_bytes(count, tensor.width, group)
        return plan.offset_of[tensor], plan.offset_of[tensor] + size

    alive: list[Tensor] = []
    for index, op in enumerate(p.ops):
        alive = [tensor for tensor in alive if last_use[tensor] >= index]
        for tensor in op.outputs:
            if tensor.owner in alive:
                continue
            begin, end = span(tensor.owner)
            assert begin % ALIGNMENT == 0
            assert end <= plan.size_bytes
            for other in alive:
                other_begin, other_end = span(other)
                assert end <= other_begin or other_end <= begin, (op.kind, other.name)
            alive.append(tensor.owner)


@settings(deadline=None, max_examples=20)
@given(tokens=st.integers(1, 600), rows=st.integers(1, 64), layers=st.integers(1, 3))
def test_memory_of_what_is_alive_never_overlaps(tokens: int, rows: int, layers: int) -> None:
    for p in (program(Shape(layers=layers)), lowered(Shape(layers=layers))):
        assert_nothing_alive_overlaps(p, plan_memory(p, tokens, rows), tokens, rows)


def test_buffers_are_reused_over_layers() -> None:
    sizes = [plan_memory(lowered(Shape(layers=n)), 64, 4).size_bytes for n in (1, 2, 6)]
    assert sizes[1] == sizes[2] <= sizes[0] * 1.2


def test_the_plan_asks_how_large_quantised_rows_are() -> None:
    asked: list[tuple[int, int, int]] = []

    def tell(num_rows: int, k: int, group: int) -> int:
        asked.append((num_rows, k, group))
        return 64

    plan_memory(lowered(Shape()), 64, 4, tell)
    assert {group for _, _, group in asked} == {32, 256}
    assert {num_rows for num_rows, _, _ in asked} == {64, 4}
