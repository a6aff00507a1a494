"""Measure a model's steps against what the machine could do, in one run.

For every case: a raw read of as many bytes as the step reads, a step, a raw read, a step, ... until
enough time went by. Then a few steps with every operator timed.

Not here: what a step needs (``work``), arrays and memory (``rig``), words and pictures.

Always true: between two steps the processor's caches were emptied of the model, unless it was
asked to leave them warm; nothing that was asked for is left out in silence.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.bench.cases import Case, Room, Skipped, Wish
from insitu.bench.errors import BenchError
from insitu.bench.report import (
    OperatorRow,
    Peaks,
    Report,
    Row,
    least_operator_seconds,
    least_seconds,
)
from insitu.bench.rig import MAX_READ_BYTES, Rig, cache_bytes, chunks_of
from insitu.bench.work import Work, merged, operator_name, step_work, total
from insitu.engine.machine import memory_limit
from insitu.engine.plan import Plan, Wanted, make_plan, size
from insitu.models.kv_cache import kv_layout

if TYPE_CHECKING:
    from insitu.bench.watcher import Watcher
    from insitu.engine.machine import Memory
    from insitu.kernels.kv_layout import KVLayout
    from insitu.kernels.native import OperatorTime
    from insitu.models.load import LoadedModel

# Of memory that is there now; what is left is for the machine's other work.
_USABLE = 0.9
# A cache is not emptied by reading just its size: lines are not evicted in the order they came.
_FLUSH = 1.25


@dataclass(frozen=True, slots=True)
class Effort:
    """How long each case is measured."""

    seconds: float = 1.0  # at least, reads included
    max_repeats: int = 200
    min_repeats: int = 3
    profiled: int = 2
    peak_seconds: float = 0.02  # for each register peak, before each case
    is_cold: bool = True


QUICK = Effort(seconds=0.3, max_repeats=50, profiled=1)


def measure(
    model: LoadedModel,
    wanted: Wanted,
    wish: Wish,
    effort: Effort,
    watch: Watcher,
    limit: Memory | None = None,
) -> Report:
    """Measure every case that fits; ``wanted`` gives threads and the type of keys and values."""
    limit = memory_limit() if limit is None else limit
    kv = kv_layout(model.spec, dtype=wanted.kv_cache_dtype)
    cases, skipped = _choose(model, wanted, wish, kv, limit, _flush_bytes(effort.is_cold))
    rig, works = open_rig(model, wanted, cases, limit, is_cold=effort.is_cold)
    try:
        samples = []
        for index, case in enumerate(cases):
            watch(str(case), index, len(cases))
            samples.append(_sample(rig, case, total(works[case]), effort))
        watch("", len(cases), len(cases))
    finally:
        rig.close()
    machine = f"{rig.threads} threads, {rig.isa}"
    return _report(machine, samples, works, skipped)


def open_rig(
    model: LoadedModel,
    wanted: Wanted,
    cases: list[Case],
    limit: Memory | None = None,
    *,
    is_cold: bool = True,
) -> tuple[Rig, dict[Case, dict[str, Work]]]:
    """The model with memory for these cases and no more, and what each of them has to do."""
    kv = kv_layout(model.spec, dtype=wanted.kv_cache_dtype)
    plan = _plan(model, wanted, kv, cases, memory_limit() if limit is None else limit)
    works = {case: _work(model, kv, plan, case) for case in cases}
    most = max(total(work).read_bytes for work in works.values())
    rig = Rig(model, plan, read_bytes=most, flush_bytes=_flush_bytes(is_cold))
    return rig, works


def _flush_bytes(is_cold: bool) -> int:
    return int(_FLUSH * cache_bytes()) if is_cold else 0


def _choose(
    model: LoadedModel,
    wanted: Wanted,
    wish: Wish,
    kv: KVLayout,
    limit: Memory,
    flush_bytes: int,
) -> tuple[list[Case], list[Skipped]]:
    """Cases within the model's length and what memory is left beside the raw reads' buffer."""
    fixed = _plan(model, wanted, kv, [], limit)
    weights = sum(group.size_bytes for group in fixed.weights)
    left = _USABLE * limit.limit_bytes - fixed.at_most_bytes - flush_bytes
    # The buffer holds as many bytes as a step reads, up to a bound: weights, then as much as KV.
    left -= min(weights, MAX_READ_BYTES)
    twice = min(left // 2, max(0, MAX_READ_BYTES - weights))
    num_blocks = max(0, int((left - twice) // kv.bytes_per_block))
    asked_len = wanted.max_model_len or model.spec.max_model_len
    room = Room(min(asked_len, model.spec.max_model_len), num_blocks, kv.block_size)
    cases, skipped = room.choose(wish.cases())
    if not cases:
        first = skipped[0] if skipped else None
        why = f"{first.case}: {first.reason}" if first else "no batch and no prefill is asked for"
        raise BenchError(f"Nothing to measure ({why}). Give a smaller --context or --batch.")
    return cases, skipped


def _plan(
    model: LoadedModel, wanted: Wanted, kv: KVLayout, cases: list[Case], limit: Memory
) -> Plan:
    """Memory for these cases and no more."""
    num_blocks = max((case.num_blocks(kv.block_size) for case in cases), default=1)
    batch = max((case.batch for case in cases), default=1)
    longest = max((case.seq_len for case in cases), default=1)
    made = make_plan(
        model,
        Wanted(
            threads=wanted.threads,
            kv_cache_bytes=num_blocks * kv.bytes_per_block,
            kv_cache_dtype=wanted.kv_cache_dtype,
            max_model_len=longest,
            max_num_seqs=batch,
        ),
        limit,
    )
    if made.at_most_bytes > limit.limit_bytes:
        raise BenchError(f"{size(made.at_most_bytes)} do not fit {size(limit.limit_bytes)}.")
    return made


def _work(model: LoadedModel, kv: KVLayout, plan: Plan, case: Case) -> dict[str, Work]:
    """Of all the case's steps; only the last has logits."""
    chunks = chunks_of(case, plan.max_num_batched_tokens_alone)
    rows = [0] * (len(chunks) - 1) + [case.batch]
    program = model.program
    return merged([step_work(program, kv, *one) for one in zip(chunks, rows, strict=True)])


@dataclass(frozen=True, slots=True)
class _Sample:
    """One case as measured: pairs of a raw read's rate and the seconds of the steps after it."""

    case: Case
    pairs: list[tuple[float, float]]
    peaks: Peaks
    profile: list[OperatorTime]
    num_profiled: int


def _sample(rig: Rig, case: Case, work: Work, effort: Effort) -> _Sample:
    steps = rig.steps(case)
    peaks = Peaks(rig.int8_peak(effort.peak_seconds), rig.float32_peak(effort.peak_seconds))
    pairs: list[tuple[float, float]] = []
    # Not counted: pages are touched for the first time. Where one run takes long, one is enough.
    is_long = rig.run(steps) > effort.seconds
    least, num_profiled = (1, 1) if is_long else (effort.min_repeats, effort.profiled)
    end = time.perf_counter() + effort.seconds
    while len(pairs) < least or (time.perf_counter() < end and len(pairs) < effort.max_repeats):
        rate = rig.read_rate(work.read_bytes)
        pairs.append((rate, rig.run(steps)))
    rig.start_profile()
    for _ in range(num_profiled):
        rig.read_rate(work.read_bytes)
        rig.run(steps)
    return _Sample(case, pairs, peaks, rig.take_profile(), num_profiled)


def _report(
    machine: str,
    samples: list[_Sample],
    works: dict[Case, dict[str, Work]],
    skipped: list[Skipped],
) -> Report:
    peaks = Peaks(
        max(sample.peaks.int8 for sample in samples),
        max(sample.peaks.float32 for sample in samples),
    )
    rows = tuple(_row(sample, total(works[sample.case]), peaks) for sample in samples)
    operators = tuple(
        row for sample in samples for row in _operator_rows(sample, works[sample.case], peaks)
    )
    rates = [rate for sample in samples for rate, _ in sample.pairs]
    return Report(machine, statistics.median(rates), peaks, rows, operators, tuple(skipped))


def _row(sample: _Sample, work: Work, peaks: Peaks) -> Row:
    shares = [least_seconds(work, rate, peaks)[0] / taken for rate, taken in sample.pairs]
    rate = statistics.median(rate for rate, _ in sample.pairs)
    return Row(
        case=sample.case,
        work=work,
        seconds=statistics.median(taken for _, taken in sample.pairs),
        read_bytes_per_s=rate,
        share_of_ceiling=statistics.median(shares),
        binds=least_seconds(work, rate, peaks)[1],
    )


def _operator_rows(sample: _Sample, work: dict[str, Work], peaks: Peaks) -> list[OperatorRow]:
    """Operators of all layers together, the slowest first."""
    seconds: dict[str, float] = {}
    for one in sample.profile:
        name = operator_name(one.kind, one.name)
        seconds[name] = seconds.get(name, 0.0) + one.time_ns / 1e9 / sample.num_profiled
    rate = statistics.median(rate for rate, _ in sample.pairs)
    whole = sum(seconds.values()) or 1.0
    rows = []
    for name, taken in sorted(seconds.items(), key=lambda item: -item[1]):
        share = None
        if name in work and taken > 0:
            share = least_operator_seconds(work[name], rate, peaks) / taken
        rows.append(OperatorRow(sample.case, name, taken * 1e3, taken / whole, share))
    return rows
