"""Steps started ahead: in order, upon ids not yet seen, errors at their own end."""

from __future__ import annotations

import dataclasses
import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest
from kernels.tiny_decoder import ArrayBatch, Shape, Work, batch_of, native, sampling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.kernels.native import Native, Started

SHAPE = Shape(layers=1)
PROMPTS = [np.arange(3, 9, dtype=np.int32), np.arange(40, 44, dtype=np.int32)]
BLOCKS = [[3, 9], [5]]


@pytest.fixture
def engine() -> Iterator[Native]:
    made = native(SHAPE)
    yield made
    made.close()


def finish(engine: Native, started: Started) -> list[int]:
    """The ids that a step chose."""
    engine.finish(started)
    assert started.result is not None
    return list(map(int, started.result.token_ids))


def prefill() -> ArrayBatch:
    """Both prompts, a token wanted after each."""
    works = [Work(ids, 0, len(ids), blocks) for ids, blocks in zip(PROMPTS, BLOCKS, strict=True)]
    return batch_of(works, SHAPE.block_size)


def decode(step: int, ids: list[int]) -> ArrayBatch:
    """The ``step``-th token after each prompt."""
    works = []
    for prompt, blocks in zip(PROMPTS, BLOCKS, strict=True):
        end = len(prompt) + step
        works.append(Work(np.zeros(end, np.int32), end - 1, end, blocks))
    batch = batch_of(works, SHAPE.block_size)
    return dataclasses.replace(batch, token_ids=np.array(ids, np.int32))


def in_turn(engine: Native, num_steps: int) -> list[list[int]]:
    """The ids of every step, each known before the next is begun."""
    ids = [engine.step(prefill(), sampling(2)).token_ids.tolist()]
    for step in range(1, num_steps):
        ids.append(engine.step(decode(step, ids[-1]), sampling(2)).token_ids.tolist())
    return ids


def test_ids_not_yet_seen_give_the_same_tokens(engine: Native) -> None:
    expected = in_turn(engine, 5)
    assert expected[0][0] != expected[0][1]
    started = [engine.start(prefill(), sampling(2))]
    started += [engine.start(decode(step, [-1, -2]), sampling(2)) for step in range(1, 5)]
    gc.collect()  # the arrays are the engine's until the end
    assert [finish(engine, one) for one in started] == expected
    assert engine.busy_ns > 0


def test_rows_may_change_places(engine: Native) -> None:
    first, second, *_ = in_turn(engine, 2)
    started = engine.start(prefill(), sampling(2))
    batch = decode(1, [-1, first[1]])  # one named by its row, one by its id
    follows = engine.start(batch, sampling(2))
    assert finish(engine, started) == first
    assert finish(engine, follows) == second


def test_a_row_that_nothing_chose_is_refused(engine: Native) -> None:
    engine.step(prefill(), sampling(2))
    with pytest.raises(ValueError, match="token_ids"):
        engine.step(decode(1, [-1, -3]), sampling(2))
    with pytest.raises(ValueError, match="token_ids"):  # the step before failed
        engine.step(decode(1, [-1, -2]), sampling(2))


def test_an_error_is_told_at_the_end_of_its_own_step(engine: Native) -> None:
    expected = in_turn(engine, 2)
    good = engine.start(prefill(), sampling(2))
    bad = engine.start(decode(1, [10**6, 0]), sampling(2))
    upon_bad = engine.start(decode(2, [-1, -2]), sampling(2))
    again = engine.start(decode(1, expected[0]), sampling(2))
    assert finish(engine, good) == expected[0]
    for one in (bad, upon_bad):
        with pytest.raises(ValueError, match="token_ids"):
            finish(engine, one)
    assert finish(engine, again) == expected[1]
    with pytest.raises(ValueError, match="no such step"):
        finish(engine, again)


def test_blocks_are_copied_and_wiped_after_what_was_started(engine: Native) -> None:
    expected = in_turn(engine, 2)
    started = engine.start(prefill(), sampling(2))
    engine.copy_block(3, 7)
    engine.wipe_block(3)
    batch = decode(1, expected[0])
    table = batch.block_table.copy()
    table[0, 0] = 7
    slots = batch.slot_mapping.copy()
    slots[0] += (7 - 3) * SHAPE.block_size
    moved = dataclasses.replace(batch, block_table=table, slot_mapping=slots)
    assert engine.step(moved, sampling(2)).token_ids.tolist() == expected[1]
    assert finish(engine, started) == expected[0]


def test_a_step_that_nobody_waits_for_keeps_nothing_alive() -> None:
    made = native(SHAPE)
    made.start(prefill(), sampling(2))
    made.close()
    left = native(SHAPE)
    left.start(prefill(), sampling(2))
    del left
    gc.collect()


def test_a_step_may_be_computed_first_and_chosen_from_later(engine: Native) -> None:
    expected = in_turn(engine, 3)
    first = engine.start(prefill(), sampling(2))
    computed = engine.start(decode(1, [-1, -2]), None)
    assert finish(engine, first) == expected[0]
    engine.finish(computed)
    assert engine.choose(sampling(2)).token_ids.tolist() == expected[1]
    assert finish(engine, engine.start(decode(2, [-1, -2]), sampling(2))) == expected[2]
