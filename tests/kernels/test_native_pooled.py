"""Pooled rows: the same bits however they are made, and no head is run for them."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.test_native_executor import SHAPES, _bits, _blocks, _tokens
from kernels.tiny_decoder import LIMITS, Float32, Shape, Work, batch_of, lowered, native, sampling

from insitu.kernels.native import Native, available_isas
from insitu.kernels.reference import Reference


@pytest.fixture(scope="module", params=range(len(SHAPES)))
def shape(request: pytest.FixtureRequest) -> Shape:
    chosen: int = request.param
    return SHAPES[chosen]


@pytest.fixture
def pooled(shape: Shape) -> Float32:
    """Pooled rows of the last tokens of two prompts, each alone on one thread."""
    engine = native(shape, num_threads=1)
    works = [Work(_tokens(shape), 0, stop, _blocks(shape, 1, 0), (), (-1,)) for stop in (40, 90)]
    rows = [engine.pool(batch_of([one], shape.block_size))[0] for one in works]
    engine.close()
    return np.array(rows)


def test_pooled_rows_have_the_same_bits_however_they_are_made(
    shape: Shape, pooled: Float32
) -> None:
    assert np.isfinite(pooled).all()
    tokens, size = _tokens(shape), shape.block_size
    mine, others = _blocks(shape, 4, 20), _blocks(shape, 9, 60)
    for isa in available_isas():
        engine = native(shape, num_threads=3, isa=isa)
        engine.pool(batch_of([Work(tokens, 0, 33, mine, ())], size))
        # Beside one that is embedded whole, and one whose logits are wanted.
        works = [
            Work(tokens, 0, 90, others, (), (-1,)),
            Work(_tokens(shape, 5, 40), 0, 40, _blocks(shape, 1, 100, 40)),
            Work(tokens, 33, 40, mine, (), (-1,)),
        ]
        assert _bits(engine.pool(batch_of(works, size))) == _bits(pooled[::-1])
        engine.close()


def test_pooled_rows_are_what_the_head_reads(shape: Shape, pooled: Float32) -> None:
    reference = Reference(lowered(shape), shape.kv)
    work = Work(_tokens(shape), 0, 40, _blocks(shape, 1, 0), (), (-1,))
    row = reference.pool(batch_of([work], shape.block_size))[0]
    assert np.abs(row - pooled[0]).max() < 1e-3 * np.abs(row).max()


def test_the_head_is_not_run_for_pooled_rows(shape: Shape) -> None:
    engine = native(shape)
    work = Work(_tokens(shape), 0, 9, _blocks(shape, 5, 0), (), (-1,))
    engine.start_profile()
    engine.step(batch_of([work], shape.block_size), sampling(0))
    idle = [t.kind for t in engine.profile() if t.time_ns == 0]
    assert idle[-2:] == ["linear", "sample"]
    assert set(idle[:-2]) <= {"take", "quantize_rows"}
    engine.close()


def test_a_program_without_pooled_rows_says_so(shape: Shape) -> None:
    program = lowered(shape)
    program.pooled = None
    engine = Native(program, kv=shape.kv, limits=LIMITS, num_threads=1)
    work = Work(_tokens(shape), 0, 9, _blocks(shape, 5, 0), (), (-1,))
    with pytest.raises(ValueError, match="pooled_rows"):
        engine.pool(batch_of([work], shape.block_size))
    engine.close()
