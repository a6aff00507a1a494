"""Inputs of linears whose groups of 32 lie to one side of zero: rounded, and multiplied.

Here the definition is held to its bounds, and every instruction set, at every number of rows, to
the definition. Not here: other groups (``test_reference``, ``test_native_operators``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from kernels.tiny_decoder import linear
from kernels.tiny_operators import one_sequence, over_rows

from insitu.kernels import reference_math as maths
from insitu.kernels.blocks import BlockType, decode
from insitu.kernels.kv_layout import KVLayout
from insitu.kernels.native import Limits, Native, available_isas
from insitu.kernels.passes import quantize_activations
from insitu.kernels.reference import Reference
from insitu.kernels.run_types import NATIVE

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.pack import PackedLinear
    from insitu.kernels.program import Program, Tensor

Float32 = npt.NDArray[np.float32]
KV = KVLayout(num_layers=1, num_kv_heads=1, head_dim=16, block_size=16)
NUM_ROWS, NUM_INPUTS, NUM_OUTPUTS = 40, 160, 70  # five groups of 32; a ragged last n-block
LIMITS = Limits(
    max_num_tokens=NUM_ROWS,
    max_num_logit_rows=NUM_ROWS,
    max_num_seqs=1,
    num_blocks=8,
    max_blocks_per_seq=8,
)
TYPES = [t for t in NATIVE if t.activation_group == 32]


def _normed(p: Program, x: Tensor) -> Tensor:
    """What other operators make is quantised by columns, and has no shifts."""
    return p.rms_norm(x, np.ones(x.width, np.float32), 1e-9)


def one_sided(rows: int, width: int, seed: int = 0) -> Float32:
    """Every group to one side, whichever; one value of each a little beyond zero."""
    x = np.abs(np.random.default_rng(seed).standard_normal((rows, width // 32, 32)))
    x[:, :, 7] = -x.max(axis=2) * np.linspace(0, 0.06, rows)[:, None]
    x[:, 1::2] *= -1
    return x.reshape(rows, width).astype(np.float32)


def mixed() -> Float32:
    """Rows without a one-sided group, of nothing else, of some; a few that are not finite."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((NUM_ROWS, NUM_INPUTS), np.float32)
    sided = one_sided(NUM_ROWS, NUM_INPUTS)
    chosen = rng.random((NUM_ROWS, NUM_INPUTS // 32)) < np.linspace(-0.3, 1.2, NUM_ROWS)[:, None]
    x = np.where(np.repeat(chosen, 32, axis=1), sided, x)
    x[11, 40], x[23, 3], x[36, 77] = np.nan, np.inf, -np.inf
    x[30, 64:96], x[31, 64:96] = 0, -0.0
    return x.astype(np.float32)


def back(rows: maths.QuantizedRows, group: int) -> Float32:
    return np.asarray(rows.q * np.repeat(rows.scale, group, axis=1))


def test_a_shifted_group_has_half_the_error() -> None:
    x = one_sided(10, 128)
    plain, inputs = maths.quantize(x, 32), maths.quantize_inputs(x, 32)
    assert (inputs.scale <= plain.scale * 0.532).all()
    assert (np.abs(back(inputs, 32) - x) <= np.repeat(inputs.scale, 32, axis=1) * 0.501).all()
    assert (np.ptp(inputs.q.reshape(10, 4, 32), axis=2) == 254).all()
    assert np.abs(inputs.q).max() <= 254


def test_where_groups_are_alike_and_of_both_signs_none_is_shifted() -> None:
    x = np.random.default_rng(2).standard_normal((10, 1024), np.float32)
    plain, inputs = maths.quantize(x, 32), maths.quantize_inputs(x, 32)
    assert np.array_equal(inputs.q, plain.q)
    assert np.array_equal(inputs.scale, plain.scale)


def test_what_is_turned_round_is_rounded_the_other_way_round() -> None:
    x = one_sided(9, 64)
    ahead, behind = maths.quantize_inputs(x, 32), maths.quantize_inputs(-x, 32)
    assert np.array_equal(ahead.q, -behind.q)
    assert np.array_equal(ahead.scale, behind.scale)


def test_a_group_is_shifted_where_that_matters_to_its_row() -> None:
    x = np.zeros((3, 64), np.float32)
    x[:, 3], x[:, 40], x[:, 41] = 2.0, 8.0, -8.0  # squared 4 and 64: a 20th of 68 is 3.4
    x[1, 9] = -0.5  # half the distance is 1.25
    x[2, 40:42] /= 2  # a 20th of 20 is 1
    scales = maths.quantize_inputs(x, 32).scale
    assert scales[:, 0].tolist() == [np.float32(2 / 127), np.float32(2 / 127), np.float32(2 / 254)]
    assert scales[:, 1].tolist() == [np.float32(8 / 127), np.float32(8 / 127), np.float32(4 / 127)]


def test_no_group_of_256_is_one_sided() -> None:
    x = np.abs(one_sided(3, 512))
    plain, inputs = maths.quantize(x, 256), maths.quantize_inputs(x, 256)
    assert np.array_equal(inputs.q, plain.q)
    assert np.array_equal(inputs.scale, plain.scale)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.0], 0.0),
        ([-0.0], 0.0),
        ([1e-39], np.float32(1e-39) / np.float32(127)),  # 254 / 1e-39 is infinite
        ([3.3e38, -2e37], np.float32(3.3e38) / np.float32(127)),  # so is their distance
        ([np.inf, 1.0], np.inf),
        ([np.nan, 1.0], np.nan),
    ],
)
def test_where_no_step_is_finite_a_group_is_as_any_other(
    values: list[float], wanted: float
) -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, : len(values)] = values
    with np.errstate(all="ignore"):
        rows, plain = maths.quantize_inputs(x, 32), maths.quantize(x, 32)
    assert np.array_equal(rows.scale, np.array([[wanted]], np.float32), equal_nan=True)
    assert np.array_equal(rows.q, plain.q)


@pytest.mark.parametrize("block_type", TYPES)
def test_products_are_nearer_to_exact_ones(block_type: BlockType) -> None:
    x = one_sided(8, NUM_INPUTS, seed=3)
    x /= np.sqrt(np.mean(x * x, axis=1, keepdims=True))  # a norm leaves it
    weight = _weight(block_type)
    segment = weight.segments[0]
    p = over_rows(x, lambda p, t: p.linear(_normed(p, t), weight))
    exact = Reference(p, KV).run(one_sequence(8, 16))  # over dequantised weights
    program = quantize_activations(over_rows(x, lambda p, t: p.linear(_normed(p, t), weight)))
    numeric = Reference(program, KV).run(one_sequence(8, 16))
    values = decode(segment.block_type, segment.raw(), segment.n, segment.k)
    worth = np.abs(values).reshape(NUM_OUTPUTS, -1, 32).sum(axis=2)
    bound = (maths.quantize(x, 32).scale * np.float32(0.532 * 0.501)) @ worth.T
    assert (np.abs(numeric - exact) <= bound + 1e-4 * np.abs(exact).max()).all()


@pytest.mark.parametrize("made_by", [_normed, lambda _, x: x], ids=["norm", "another"])
@pytest.mark.parametrize("block_type", TYPES)
def test_every_instruction_set_and_number_of_rows_agree(
    block_type: BlockType, made_by: Callable[[Program, Tensor], Tensor]
) -> None:
    def program() -> Program:  # an engine releases the weights it packs
        weight = _weight(block_type)
        return quantize_activations(
            over_rows(mixed(), lambda p, t: p.linear(made_by(p, t), weight))
        )

    wanted = Reference(program(), KV).run(one_sequence(NUM_ROWS, 16))
    results = []
    for isa in available_isas():
        engine = Native(program(), kv=KV, limits=LIMITS, num_threads=2, isa=isa)
        results += [
            engine.forward(one_sequence(num_rows, 16)).copy() for num_rows in range(1, NUM_ROWS + 1)
        ]
        engine.close()
    whole = results[NUM_ROWS - 1]
    for result in results:
        assert result.tobytes() == whole[: len(result)].tobytes()
    is_clean = np.isfinite(wanted).all(axis=1)
    assert np.flatnonzero(~is_clean).tolist() == [11, 23, 36]
    assert np.array_equal(np.isnan(whole), np.isnan(wanted))
    right = wanted[is_clean]
    unit = np.spacing(np.abs(right).max(axis=1, keepdims=True))
    assert (np.abs(whole[is_clean] - right) <= 2 * unit).all()


def _weight(block_type: BlockType) -> PackedLinear:
    return linear(np.random.default_rng(4), [block_type], [NUM_OUTPUTS], NUM_INPUTS)
