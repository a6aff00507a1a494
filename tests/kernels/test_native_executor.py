"""The executor over a whole random decoder: bits that never move, and batches that may not hurt."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernels.tiny_decoder import (
    LIMITS,
    ArrayBatch,
    Float32,
    Int32,
    Shape,
    Work,
    batch_of,
    blocks_for,
    lowered,
    native,
    sampling,
)

from insitu.kernels.kv_layout import KV_DTYPES, KVDtype
from insitu.kernels.native import (
    Limits,
    Native,
    NativeError,
    available_isas,
    native_sizes,
    selected_isa,
)
from insitu.kernels.sampling import RowStatus

# head_dim 48 takes the ragged paths, 64 and 128 the wide ones; 7 heads a KV head make one tile.
SHAPES = [
    Shape(),
    Shape(heads=9, kv_heads=3, head_dim=64, block_size=32, pairing="adjacent", bias=False),
    Shape(heads=7, kv_heads=1, head_dim=128, kv_dtype="f32"),
    Shape(heads=14, kv_heads=1, head_dim=80, kv_dtype="int8", window=40, soft_cap=5.0),
    Shape(heads=4, kv_heads=2, head_dim=64, kv_dtype="bf16", block_size=32, window=270),
    Shape(heads=4, kv_heads=4, head_dim=16, hidden=96, inner=160, vocab=77),
]
NUM_TOKENS = 300  # crosses a chunk of 256 positions


def _tokens(shape: Shape, seed: int = 3, num: int = NUM_TOKENS) -> Int32:
    return np.random.default_rng(seed).integers(0, shape.vocab, num).astype(np.int32)


def _blocks(shape: Shape, seed: int, first: int, num_tokens: int = NUM_TOKENS) -> list[int]:
    num = -(-num_tokens // shape.block_size)
    return blocks_for(np.random.default_rng(seed), num, range(first, first + num))


def _bits(x: Float32) -> bytes:
    return x.tobytes()


@pytest.fixture(scope="module", params=range(len(SHAPES)))
def shape(request: pytest.FixtureRequest) -> Shape:
    chosen: int = request.param
    return SHAPES[chosen]


@pytest.fixture
def whole(shape: Shape) -> Iterator[Float32]:
    """Logits of the last 12 tokens of a one-shot prefill on one thread."""
    engine = native(shape, num_threads=1)
    rows = range(NUM_TOKENS - 12, NUM_TOKENS)
    yield engine.forward(
        batch_of(
            [Work(_tokens(shape), 0, NUM_TOKENS, _blocks(shape, 1, 0), rows)], shape.block_size
        )
    )
    engine.close()


def test_thread_counts_and_instruction_sets_give_the_same_bits(
    shape: Shape, whole: Float32
) -> None:
    assert np.isfinite(whole).all()
    assert whole.std() > 0.1
    work = Work(
        _tokens(shape), 0, NUM_TOKENS, _blocks(shape, 9, 40), range(NUM_TOKENS - 12, NUM_TOKENS)
    )
    for isa in available_isas():
        for num_threads in (2,) if isa == "generic" else (1, 2, 3):
            engine = native(shape, num_threads=num_threads, isa=isa)
            assert _bits(engine.forward(batch_of([work], shape.block_size))) == _bits(whole)
            engine.close()


@pytest.mark.parametrize("chunk", [1, 37, 256])
def test_chunked_prefill_and_decode_equal_one_shot(
    shape: Shape, whole: Float32, chunk: int
) -> None:
    engine = native(shape)
    tokens, blocks, first = _tokens(shape), _blocks(shape, 2, 7), NUM_TOKENS - 12
    for start in range(0, first, chunk):
        stop = min(start + chunk, first)
        engine.forward(batch_of([Work(tokens, start, stop, blocks, ())], shape.block_size))
    for index, position in enumerate(range(first, NUM_TOKENS)):
        work = Work(tokens, position, position + 1, blocks)
        row = engine.forward(batch_of([work], shape.block_size))
        assert _bits(row[0]) == _bits(whole[index])
    engine.close()


def test_a_busy_batch_changes_nothing(shape: Shape, whole: Float32) -> None:
    engine = native(shape, num_threads=3)
    size, tokens = shape.block_size, _tokens(shape)
    mine = _blocks(shape, 4, 20)
    others = [_tokens(shape, seed, 90) for seed in (5, 6, 7)]
    owned = [_blocks(shape, seed, 60 + 8 * seed, 90) for seed in range(3)]
    first = NUM_TOKENS - 12
    prefill = [Work(o, 0, 40, b) for o, b in zip(others, owned, strict=True)]
    engine.forward(batch_of([prefill[0], Work(tokens, 0, first, mine, ()), *prefill[1:]], size))
    for index in range(12):
        start = 40 + index
        busy = [
            Work(others[0], start, start + 1, owned[0]),
            Work(tokens, first + index, first + index + 1, mine),
            Work(others[1], start, start + 1, owned[1]),
        ]
        rows = engine.forward(batch_of(busy, size))
        assert _bits(rows[1]) == _bits(whole[index])
    engine.close()


def test_long_context_is_split_over_threads_without_moving_a_bit() -> None:
    shape = Shape(kv_heads=1, heads=2, head_dim=32, layers=1)
    tokens = _tokens(shape, num=1000)
    blocks = _blocks(shape, 1, 0, 1000)
    rows = []
    for num_threads in (1, 3):
        engine = native(shape, num_threads=num_threads)
        for start in range(0, 999, 500):
            work = Work(tokens, start, min(start + 500, 999), blocks, ())
            engine.forward(batch_of([work], shape.block_size))
        rows.append(engine.forward(batch_of([Work(tokens, 999, 1000, blocks)], shape.block_size)))
        engine.close()
    assert _bits(rows[0]) == _bits(rows[1])


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [0, 300])
def test_block_size_threads_and_tiles_move_no_bit(kv_dtype: KVDtype, window: int) -> None:
    """Prefill in tiles of any size, then one row over several chunks split among threads."""
    rows = []
    for block_size, num_threads, step in ((16, 1, 700), (32, 3, 61), (48, 2, 7)):
        shape = Shape(
            kv_heads=1,
            heads=3,
            head_dim=32,
            kv_dtype=kv_dtype,
            window=window,
            block_size=block_size,
        )
        tokens, blocks = _tokens(shape, num=700), _blocks(shape, 1, 0, 700)
        engine = native(shape, num_threads=num_threads)
        for start in range(0, 699, step):
            work = Work(tokens, start, min(start + step, 699), blocks, ())
            engine.forward(batch_of([work], block_size))
        rows.append(engine.forward(batch_of([Work(tokens, 699, 700, blocks)], block_size)))
        engine.close()
    assert np.isfinite(rows[0]).all()
    assert _bits(rows[0]) == _bits(rows[1]) == _bits(rows[2])


def test_blocks_left_full_of_nan_do_no_harm(shape: Shape, whole: Float32) -> None:
    poisoned = native(shape, poison=0)
    clean = native(shape)
    blocks, tokens = _blocks(shape, 1, 0), _tokens(shape)
    tokens = np.where(tokens == 0, 1, tokens).astype(np.int32)
    nans = np.zeros(NUM_TOKENS, np.int32)
    spoilt = batch_of([Work(nans, 0, NUM_TOKENS, blocks)], shape.block_size)
    result = poisoned.step(spoilt, sampling(1))
    assert result.status[0] == RowStatus.NOT_FINITE
    rows = [
        engine.forward(
            batch_of([Work(tokens, 0, 7, blocks), Work(tokens, 0, 1, [100])], shape.block_size)
        )
        for engine in (poisoned, clean)
    ]
    assert np.isfinite(rows[0]).all()
    assert _bits(rows[0]) == _bits(rows[1])
    poisoned.close()
    clean.close()
    assert np.isfinite(whole).all()


def test_step_samples_the_logits_of_forward(shape: Shape) -> None:
    engine = native(shape)
    works = [
        Work(_tokens(shape, s), 0, 20 + s, _blocks(shape, s, 30 * s, 20 + s)) for s in range(3)
    ]
    batch = batch_of(works, shape.block_size)
    logits = engine.forward(batch)
    result = engine.step(batch, sampling(3, num_logprobs=2))
    assert result.token_ids.tolist() == logits.argmax(axis=1).tolist()
    assert (result.top_ids[:, 0] == result.token_ids).all()
    assert (result.top_logprobs[:, 0] == result.logprobs).all()
    engine.close()


def test_a_step_may_want_no_logits() -> None:
    shape = Shape(layers=1)
    engine = native(shape)
    batch = batch_of([Work(_tokens(shape), 0, 5, [3], ())], shape.block_size)
    assert engine.step(batch, sampling(0)).token_ids.shape == (0,)
    engine.close()


Spoil = Callable[[ArrayBatch], None]


def _set(name: str, index: tuple[int, ...] | int, value: int) -> Spoil:
    def spoil(batch: ArrayBatch) -> None:
        getattr(batch, name)[index] = value

    return spoil


def _replace(name: str, value: object) -> Spoil:
    return lambda batch: setattr(batch, name, value)


HOSTILE: list[tuple[str, Spoil]] = [
    ("token_ids", _set("token_ids", 2, -1)),
    ("token_ids", _set("token_ids", 2, 300)),
    ("positions", _set("positions", 4, 3)),
    ("positions", _set("positions", 0, -5)),
    ("slot_mapping", _set("slot_mapping", 1, 128 * 16)),
    ("slot_mapping", _set("slot_mapping", 1, -1)),
    ("slot_mapping", _set("slot_mapping", 1, 5)),
    ("block_table", _set("block_table", (1, 0), 128)),
    ("block_table", _set("block_table", (0, 0), -1)),
    ("query_start_loc", _set("query_start_loc", 0, 1)),
    ("query_start_loc", _set("query_start_loc", 1, 0)),
    ("query_start_loc", _set("query_start_loc", 1, 2**31 - 1)),
    ("query_start_loc", _set("query_start_loc", 2, 9)),
    ("seq_lens", _set("seq_lens", 0, 2**31 - 1)),
    ("seq_lens", _set("seq_lens", 1, 0)),
    ("logit_rows", _set("logit_rows", 0, 10)),
    ("logit_rows", _set("logit_rows", 0, -1)),
    ("logit_rows", _replace("logit_rows", np.zeros(17, np.int32))),
    ("pooled_rows", _replace("pooled_rows", np.array([10], np.int32))),
    ("pooled_rows", _replace("pooled_rows", np.array([-1], np.int32))),
    ("pooled_rows", _replace("pooled_rows", np.zeros(17, np.int32))),
    ("token_ids", _replace("token_ids", np.zeros(10, np.int64))),
    ("token_ids", _replace("token_ids", [1, 2])),
    ("positions", _replace("positions", np.zeros(20, np.int32)[::2])),
    ("positions", _replace("positions", np.zeros(9, np.int32))),
    ("block_table", _replace("block_table", np.zeros(2, np.int32))),
    ("block_table", _replace("block_table", np.zeros((2, 65), np.int32))),
    ("block_table", _replace("block_table", np.zeros((2, 0), np.int32))),
    ("token_ids", _replace("token_ids", np.zeros(0, np.int32))),
]


@pytest.mark.parametrize(("name", "spoil"), HOSTILE)
def test_a_hostile_batch_is_refused_by_the_arrays_name(name: str, spoil: Spoil) -> None:
    shape = Shape(layers=1)
    engine = native(shape, num_threads=1)
    works = [Work(_tokens(shape), 0, 6, [3, 9]), Work(_tokens(shape), 0, 4, [5])]
    batch = batch_of(works, shape.block_size)
    before = engine.forward(batch)
    spoilt = dataclasses.replace(batch, **{k: v.copy() for k, v in vars(batch).items()})
    spoil(spoilt)
    with pytest.raises(ValueError, match=name if name != "token_ids" else "token_ids|positions"):
        engine.step(spoilt, sampling(len(spoilt.logit_rows)))
    assert _bits(engine.forward(batch)) == _bits(before)
    engine.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", np.inf),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", -0.1),
        ("top_k", -1),
    ],
)
def test_hostile_sampling_is_refused_by_name(name: str, value: float) -> None:
    shape = Shape(layers=1)
    engine = native(shape, num_threads=1)
    batch = batch_of([Work(_tokens(shape), 0, 6, [3])], shape.block_size)
    wanted: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        engine.step(batch, sampling(1, **wanted))
    engine.close()


def test_sizes_are_known_before_anything_is_allocated() -> None:
    shape = Shape()
    program = lowered(shape)
    sizes = native_sizes(program, shape.kv, LIMITS, 2)
    engine = Native(program, kv=shape.kv, limits=LIMITS, num_threads=2)
    assert engine.sizes == sizes
    assert sizes.kv_bytes == LIMITS.num_blocks * shape.kv.bytes_per_block
    assert sizes.logits_bytes == LIMITS.max_num_logit_rows * shape.vocab * 4
    engine.close()


def test_a_closed_engine_says_so() -> None:
    shape = Shape(layers=1)
    engine = native(shape)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.forward(batch_of([Work(_tokens(shape), 0, 6, [3])], shape.block_size))


def test_an_unknown_instruction_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSITU_ISA", "mmx")
    with pytest.raises(NativeError, match="INSITU_ISA=mmx"):
        native(Shape(layers=1))
    monkeypatch.setenv("INSITU_ISA", "generic")
    engine = native(Shape(layers=1))
    assert engine.isa == "generic"
    engine.close()


def test_avx512_is_the_best_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [isa for isa in available_isas() if isa.startswith("avx512")]
    monkeypatch.setenv("INSITU_ISA", "avx512")
    if kinds:
        assert selected_isa() == kinds[-1]
    else:
        with pytest.raises(NativeError, match="INSITU_ISA=avx512 cannot run here"):
            selected_isa()


def test_impossible_limits_are_refused() -> None:
    shape = Shape(layers=1)
    with pytest.raises(ValueError, match="limits"):
        native(shape, limits=Limits(0, 1, 1, 1, 1))
    with pytest.raises(ValueError, match="limits"):
        native(shape, limits=Limits(1, 1, 1, 2**30, 1))


def test_a_profile_accounts_for_every_operator_and_sampling(shape: Shape) -> None:
    engine = native(shape)
    tokens, blocks = _tokens(shape), _blocks(shape, 5, 0)
    prompt = batch_of([Work(tokens, 0, 9, blocks, pooled=(-1,))], shape.block_size)
    engine.step(prompt, sampling(1))
    assert engine.profile() == []  # nothing is measured until somebody asks
    engine.start_profile()
    began = time.perf_counter_ns()
    engine.step(prompt, sampling(1))
    taken = time.perf_counter_ns() - began
    times = engine.profile()
    assert [t.kind for t in times] == [op.kind for op in lowered(shape).ops] + ["sample"]
    assert all(t.time_ns > 0 for t in times)
    assert sum(t.time_ns for t in times) <= taken
    assert times[0].name == "embedding"
    engine.start_profile()
    assert all(t.time_ns == 0 for t in engine.profile())
    engine.close()


def _ticks_of_threads() -> int:
    """Processor time of this process, all threads, in the kernel's ticks."""
    fields = Path("/proc/self/stat").read_text("ascii").rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_an_idle_pool_uses_no_time(shape: Shape) -> None:
    engine = native(shape, num_threads=8)
    tokens, blocks = _tokens(shape), _blocks(shape, 5, 0)
    engine.forward(batch_of([Work(tokens, 0, 40, blocks)], shape.block_size))
    time.sleep(0.05)  # what spins parks
    before = _ticks_of_threads()
    time.sleep(1.0)
    assert _ticks_of_threads() - before <= 1  # of a hundred a second
    engine.close()


@pytest.mark.parametrize(("spin", "pin"), [(False, False), (True, True), (False, True)])
def test_how_threads_wait_changes_no_bit(
    shape: Shape, whole: Float32, spin: bool, pin: bool
) -> None:
    engine = Native(lowered(shape), kv=shape.kv, limits=LIMITS, num_threads=3, spin=spin, pin=pin)
    work = Work(_tokens(shape), 0, NUM_TOKENS, _blocks(shape, 1, 0), range(-12, 0))
    assert _bits(engine.forward(batch_of([work], shape.block_size))) == _bits(whole)
    engine.close()
