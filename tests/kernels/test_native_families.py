"""Operators that only some families need: against their definition, and equal bits everywhere.

Each program is made anew for every instruction set and thread count (packing releases blocks).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from kernels.tiny_decoder import Work, batch_of, linear
from kernels.tiny_operators import one_sequence, over_rows

from insitu.kernels.blocks import BlockType
from insitu.kernels.kv_layout import KVLayout
from insitu.kernels.native import Limits, Native, available_isas
from insitu.kernels.pack import Experts
from insitu.kernels.passes import lower, quantize_activations
from insitu.kernels.program import Program
from insitu.kernels.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.program import Tensor

    Float32 = npt.NDArray[np.float32]

KV = KVLayout(1, 1, 16, 16)
LIMITS = Limits(320, 320, 4, num_blocks=64, max_blocks_per_seq=32)


def floats(rows: int, width: int, seed: int = 0) -> Float32:
    x = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32) * 3
    x[0, 0], x[1, -1], x[2] = 60.0, -95.0, 0.0  # exp's ends, and an all-zero row
    return x


def everywhere(make: Callable[[], Program], num_rows: int) -> Float32:
    """What every instruction set and thread count gave."""
    answers = []
    for isa in available_isas():
        for num_threads in (1, 3):
            engine = Native(make(), kv=KV, limits=LIMITS, num_threads=num_threads, isa=isa)
            answers.append(engine.forward(one_sequence(num_rows, 16)))
            engine.close()
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)
    return answers[0]


def ulps(got: Float32, wanted: Float32) -> float:
    """Greatest difference, in units of the last place of each row's greatest element."""
    unit = np.spacing(np.abs(wanted).max(axis=1, keepdims=True) + np.float32(1e-30))
    return float((np.abs(got.astype(np.float64) - wanted) / unit).max())


def weight_of(width: int, seed: int) -> Float32:
    return np.random.default_rng(seed).standard_normal(width, np.float32)


def of_a_view(p: Program, x: Tensor) -> Tensor:
    """Heads of the columns in the middle, normed one by one."""
    _, middle, _ = x.split([3, x.width - 5, 2])
    return p.rms_norm(middle, weight_of((x.width - 5) // 3, 4), 1e-5)


OPERATORS: dict[str, Callable[[Program, Tensor], Tensor]] = {
    "layer_norm": lambda p, x: p.layer_norm(x, weight_of(x.width, 1), weight_of(x.width, 2), 1e-5),
    "rms_norm of heads": of_a_view,
    "gated gelu": lambda p, x: p.gated("gelu", p.add(x, x)),
    "activate gelu": lambda p, x: p.activate("gelu", x),
    "activate silu": lambda p, x: p.activate("silu", x),
    "scale": lambda p, x: p.scale(x, 25.298221281347036),
    "soft_cap": lambda p, x: p.soft_cap(x, 30.0),
    "gate_rows": lambda p, x: p.gate_rows(x, x.split([1, x.width - 1])[0]),
    "route": lambda p, x: p.route(x, 5, is_normalised=False),
    "route, normalised": lambda p, x: p.route(x, 5, is_normalised=True),
    "route to many": lambda p, x: p.route(x, min(x.width, 40), is_normalised=True),
}


@pytest.mark.parametrize("width", [8, 32, 62, 1004])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_is_its_definition(operator: str, width: int) -> None:
    def make() -> Program:
        return quantize_activations(over_rows(floats(13, width), OPERATORS[operator]))

    wanted = Reference(make(), KV).run(one_sequence(13, 16))
    assert ulps(everywhere(make, 13), wanted) <= 4


@pytest.mark.parametrize("operator", OPERATORS)
def test_both_definitions_are_near(operator: str) -> None:
    p = over_rows(floats(13, 62), OPERATORS[operator])
    plain = Reference(p, KV).run(one_sequence(13, 16))
    ordered = Reference(quantize_activations(p), KV).run(one_sequence(13, 16))
    assert np.allclose(plain, ordered, rtol=1e-5, atol=1e-5)


def test_norm_gelu_and_routing_are_their_formulas() -> None:
    x = floats(13, 8)[3:]
    wide = x.astype(np.float64)

    def run(record: Callable[[Program, Tensor], Tensor]) -> Float32:
        return Reference(over_rows(x, record), KV).run(one_sequence(10, 16))

    centred = wide - wide.mean(axis=1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    normed = normed * weight_of(8, 1) + weight_of(8, 2)
    assert np.allclose(run(OPERATORS["layer_norm"]), normed, atol=1e-5)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    gelu = 0.5 * wide * (1 + np.tanh(inner))
    assert np.allclose(run(OPERATORS["activate gelu"]), gelu, atol=1e-5)
    power = np.exp(wide - wide.max(axis=1, keepdims=True))
    cut = np.sort(wide, axis=1)[:, -3, None]
    chosen = np.where(wide >= cut, power, 0)
    for is_normalised, total in ((True, chosen), (False, power)):
        got = run(partial(Program.route, num_active=3, is_normalised=is_normalised))
        assert np.allclose(got, chosen / total.sum(axis=1, keepdims=True), atol=1e-6)


def test_equal_logits_choose_the_lowest_ids() -> None:
    x = np.zeros((4, 8), np.float32)
    p = quantize_activations(over_rows(x, lambda p, t: p.route(t, 2, is_normalised=True)))
    assert (Reference(p, KV).run(one_sequence(4, 16)) == [0.5, 0.5, 0, 0, 0, 0, 0, 0]).all()


# --- a mixture: gate, up and down of every expert in these types ---------------------------------

TYPES = {
    "one group": (BlockType.Q8_0, BlockType.Q4_0, BlockType.Q5_0),
    "floats": (BlockType.F32, BlockType.F16, BlockType.BF16),
    "two groups": (BlockType.Q4_K, BlockType.Q8_0, BlockType.Q6_K),
}
HIDDEN, INNER, EXPERTS = 256, 256, 6


def mixture(types: tuple[BlockType, BlockType, BlockType], num_active: int = 2) -> Program:
    """Rows of 40 random tokens through six experts, chosen by columns of the rows."""
    rng = np.random.default_rng(11)
    gate, up, down = types
    experts = Experts(
        tuple(linear(rng, (gate, up), (INNER, INNER), HIDDEN) for _ in range(EXPERTS)),
        tuple(linear(rng, (down,), (HIDDEN,), INNER) for _ in range(EXPERTS)),
    )

    def record(p: Program, x: Tensor) -> Tensor:
        routing = p.route(x.split([EXPERTS, HIDDEN - EXPERTS])[0], num_active, is_normalised=True)
        return p.experts("silu", x, routing, experts, num_active)

    rows = np.random.default_rng(3).standard_normal((40, HIDDEN)).astype(np.float32)
    return lower(over_rows(rows, record))


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_a_mixture_is_its_definition(types: tuple[BlockType, BlockType, BlockType]) -> None:
    wanted = Reference(mixture(types), KV).run(one_sequence(40, 16))
    assert np.abs(everywhere(lambda: mixture(types), 40) - wanted).max() < 1e-4


@pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
def test_who_else_chose_an_expert_moves_no_bit(
    types: tuple[BlockType, BlockType, BlockType],
) -> None:
    engine = Native(mixture(types), kv=KV, limits=LIMITS, num_threads=2)
    together = engine.forward(one_sequence(40, 16))
    tokens = np.arange(40, dtype=np.int32)
    for start, stop in ((0, 1), (1, 8), (8, 40)):
        work = Work(tokens, start, stop, [7, 9, 3], wanted=range(stop - start))
        part = engine.forward(batch_of([work], 16))
        assert part.tobytes() == together[start:stop].tobytes()
    engine.close()


def test_rows_taken_some_at_a_time_are_the_same() -> None:
    # 6 of 6 experts a row, 1,024 pairs at a time: 300 rows take two turns.
    def rows_of(num: int) -> Float32:
        engine = Native(mixture(TYPES["one group"], EXPERTS), kv=KV, limits=LIMITS, num_threads=2)
        batch = one_sequence(num, 16)
        ids = np.arange(num, dtype=np.int32) % 40
        answer = engine.forward(type(batch)(ids, *[getattr(batch, n) for n in batch.__slots__[1:]]))
        engine.close()
        return answer

    many = rows_of(300)
    assert many[:40].tobytes() == many[200:240].tobytes() == rows_of(40).tobytes()


# --- learned positions ----------------------------------------------------------------------------


def with_positions(num_positions: int) -> Program:
    table = linear(np.random.default_rng(5), (BlockType.F16,), (num_positions,), 64)
    rows = floats(20, 64)
    p = over_rows(rows, lambda p, x: p.add(x, p.embed(table, p.positions)))
    return quantize_activations(p)


def test_positions_are_looked_up_as_tokens_are() -> None:
    wanted = Reference(with_positions(32), KV).run(one_sequence(20, 16))
    assert everywhere(lambda: with_positions(32), 20).tobytes() == wanted.tobytes()
    assert np.abs(wanted - floats(20, 64)).max() > 0.1


def test_a_position_beyond_the_table_is_refused() -> None:
    engine = Native(with_positions(16), kv=KV, limits=LIMITS, num_threads=1)
    with pytest.raises(ValueError, match=r"seq_lens\[0\] is 17: the model has 16 positions"):
        engine.forward(one_sequence(17, 16))
    engine.close()
