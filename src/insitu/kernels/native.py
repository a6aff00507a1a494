"""Run a Program in the extension: one call a step, the GIL released, forward and sampling together.

Not here: arithmetic, or what operators mean (``reference``). This is the only file that names
``_native``; it lowers a Program to plain tuples and checks the shape of what a step is given.

Always true: the same program, batch and sampling give the same bits on every instruction set and
any number of threads; memory is what ``native_sizes`` said before anything was allocated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu.kernels import _native
from insitu.kernels.memory import MemoryPlan, plan_memory
from insitu.kernels.pack import Experts, PackedLinear
from insitu.kernels.program import GROUPS, BatchArrays, DType, Op, Program, Rows, Tensor
from insitu.kernels.run_types import NATIVE
from insitu.kernels.sampling import StepResult, checked_array, wanted_tuple

if TYPE_CHECKING:
    from insitu.kernels.kv_layout import KVLayout
    from insitu.kernels.sampling import SamplingArrays

# The tables of csrc/isa_*.cpp; of two that run on one processor, the better is later.
ISAS = (
    *("generic", "neon", "neon-dotprod", "avx2", "avx2vnni"),
    *("avx512base", "avx512vnni", "avx512amx"),
)
_OUTPUTS = 32  # outputs of an n-block
_ROWS = tuple(Rows)  # in the order of csrc/program.h
_ATTRIBUTES = frozenset(
    (
        *("groups", "has_residual", "eps", "scale", "theta", "magnitude", "divisors", "group"),
        *("dim", "layer", "num_heads", "num_kv_heads", "head_dim", "window", "soft_cap"),
        *("activation", "num_active", "is_normalised", "by_columns"),
    )
)

Float32 = npt.NDArray[np.float32]


class NativeError(RuntimeError):
    """The extension cannot do what was asked of it here."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one step may hold, and the blocks of the KV pool.

    Pooled rows have the limit of logit rows.
    """

    max_num_tokens: int
    max_num_logit_rows: int
    max_num_seqs: int
    num_blocks: int
    max_blocks_per_seq: int

    def as_tuple(self) -> _native.LimitsTuple:
        """In the order the extension takes them."""
        return (
            self.max_num_tokens,
            self.max_num_logit_rows,
            self.max_num_seqs,
            self.num_blocks,
            self.max_blocks_per_seq,
        )


@dataclass(frozen=True, slots=True)
class NativeSizes:
    """Bytes a Native owns once it is built; ``logits_bytes`` is part of ``arena_bytes``."""

    packed_bytes: int
    kv_bytes: int
    arena_bytes: int
    logits_bytes: int
    scratch_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything, every KV block committed."""
        return self.packed_bytes + self.kv_bytes + self.arena_bytes + self.scratch_bytes


@dataclass(frozen=True, slots=True)
class Started:
    """A step that was started, to be finished once; without ``result`` it chooses nothing.

    ``pooled`` are the batch's pooled rows, [P, width], once it is finished.
    """

    number: int
    result: StepResult | None
    pooled: Float32


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Wall time of one operator over the steps since a profile was started."""

    kind: str  # of the operator; "sample" for choosing tokens
    name: str  # of its weight's first tensor, else of its output
    time_ns: int


def available_isas() -> tuple[str, ...]:
    """Instruction sets that this processor and build can run, the best last."""
    return tuple(isa for isa in ISAS if _native.has_isa(isa))


def selected_isa() -> str:
    """INSITU_ISA if it is set, else the best there is; ``avx512`` is the best that is AVX-512."""
    forced = os.environ.get("INSITU_ISA")
    if forced == "avx512":
        forced = next((isa for isa in available_isas()[::-1] if isa.startswith(forced)), forced)
    return available_isas()[-1] if not forced else _checked(forced, "INSITU_ISA")


def _checked(isa: str, source: str) -> str:
    if isa not in available_isas():
        there = ", ".join(available_isas())
        is_known = isa in (*ISAS, "avx512")
        known = "cannot run here" if is_known else "is not one of " + ", ".join(ISAS)
        raise NativeError(f"{source}={isa} {known}; this machine has {there}")
    return isa


def packed_bytes(linear: PackedLinear) -> int:
    """Bytes of a linear's segments once packed."""
    total = 0
    for segment in linear.segments:
        block = _native.packed_block_bytes(NATIVE.index(segment.block_type), segment.k)
        total += -(-segment.n // _OUTPUTS) * block
    return total


def native_sizes(
    program: Program, kv: KVLayout, limits: Limits, num_threads: int, isa: str | None = None
) -> NativeSizes:
    """What ``Native`` with the same arguments will own; nothing large is allocated."""
    isa = selected_isa() if isa is None else _checked(isa, "isa")
    lowered = _Lowering(program, limits, isa).lower()
    sizes = _native.sizes(lowered, _kv_tuple(kv), limits.as_tuple(), num_threads, isa)
    return NativeSizes(**sizes)


def _kv_tuple(kv: KVLayout) -> _native.KvTuple:
    return (kv.num_layers, kv.num_kv_heads, kv.head_dim, kv.block_size, kv.dtype)


class _Lowering:
    """A Program as the dicts and tuples that the extension reads."""

    def __init__(self, program: Program, limits: Limits, isa: str) -> None:
        if not program.is_quantized:
            raise NativeError("the program's activations are not quantised: run the pass first")
        if program.logits is None:
            raise NativeError("the program has no output")
        self.program, self.logits = program, program.logits
        self.plan: MemoryPlan = plan_memory(
            program,
            limits.max_num_tokens,
            limits.max_num_logit_rows,
            lambda rows, k, group: _native.quantized_bytes(isa, rows, k, group),
        )
        self.linears: list[PackedLinear] = []
        self._indices: dict[int, int] = {}  # by identity
        self.vectors: list[Float32] = []

    def lower(self) -> dict[str, Any]:
        """The whole program."""
        ops = [self._operator(op) for op in self.program.ops]
        lowered: dict[str, Any] = {
            "ops": ops,
            "linears": [_linear(linear) for linear in self.linears],
            "vectors": self.vectors,
            "logits": self._tensor(self.logits),
            "arena_bytes": self.plan.size_bytes,
        }
        if self.program.pooled is not None:
            lowered["pooled"] = self._tensor(self.program.pooled)
        return lowered

    def _operator(self, op: Op) -> dict[str, Any]:
        lowered: dict[str, Any] = {
            "kind": op.kind,
            "inputs": [self._tensor(t) for t in op.inputs if t not in self.program.inputs],
            "output": self._tensor(op.outputs[0]),
        }
        for key, value in op.attributes.items():
            if key in _ATTRIBUTES:
                lowered[key] = list(value) if isinstance(value, tuple) else value
        if op.outputs[0].dtype in GROUPS:
            lowered["group"] = GROUPS[op.outputs[0].dtype]
        lowered["is_positions"] = op.kind == "embed" and op.inputs[0] is self.program.positions
        lowered["is_gated"] = op.kind == "linear" and "activation" in op.attributes
        if "pairing" in op.attributes:
            lowered["is_adjacent"] = op.attributes["pairing"] == "adjacent"
        if isinstance(op.weight, PackedLinear):
            lowered["linear"] = self._index_of(op.weight)
        elif isinstance(op.weight, Experts):
            lowered["gate_up"] = [self._index_of(linear) for linear in op.weight.gate_up]
            lowered["down"] = [self._index_of(linear) for linear in op.weight.down]
        elif op.weight is not None:
            lowered["vector"] = len(self.vectors)
            self.vectors.append(np.ascontiguousarray(op.weight, np.float32))
        return lowered

    def _index_of(self, weight: PackedLinear) -> int:
        """A tied weight is packed once."""
        index = self._indices.setdefault(id(weight), len(self.linears))
        if index == len(self.linears):
            self.linears.append(weight)
        return index

    def _tensor(self, tensor: Tensor) -> tuple[int, int, int, int, int, bool]:
        owner = tensor.owner
        return (
            self.plan.offset_of[owner],
            owner.width,
            tensor.column,
            tensor.width,
            _ROWS.index(tensor.rows),
            tensor.dtype is not DType.F32,
        )


def _name_of(op: Op) -> str:
    is_linear = isinstance(op.weight, PackedLinear)
    return str(op.weight.segments[0].name if is_linear else op.outputs[0].name)


def _linear(linear: PackedLinear) -> tuple[list[tuple[Any, ...]], Float32 | None]:
    segments = []
    for segment in linear.segments:
        data = np.frombuffer(segment.raw(), np.uint8) if segment.is_ready else None
        segments.append((NATIVE.index(segment.block_type), segment.n, segment.k, data))
    return segments, linear.bias


class Native:
    """A Program with its weights packed and its KV pool reserved, ready to step."""

    def __init__(  # noqa: PLR0913
        self,
        program: Program,
        *,
        kv: KVLayout,
        limits: Limits,
        num_threads: int,
        isa: str | None = None,
        spin: bool = True,  # wait busily for some microseconds before parking
        pin: bool = False,  # keep each thread on one core
    ) -> None:
        self.isa = selected_isa() if isa is None else _checked(isa, "isa")
        self.limits, self.kv, self.num_threads = limits, kv, num_threads
        lowering = _Lowering(program, limits, self.isa)
        lowered = lowering.lower()
        self.vocab_size = lowering.logits.width
        self.pooled_width = 0 if program.pooled is None else program.pooled.width
        self._executor = _native.Executor(
            lowered, _kv_tuple(kv), limits.as_tuple(), num_threads, self.isa, spin, pin
        )
        self.sizes = NativeSizes(**self._executor.sizes())
        self._linears = lowering.linears
        self._names = [(op.kind, _name_of(op)) for op in program.ops] + [("sample", "sample")]
        for index, linear in enumerate(lowering.linears):
            self._fill(index, linear)

    def _fill(self, index: int, linear: PackedLinear) -> None:
        """Pack the segments that are stored as something else, one at a time, then let go."""
        for number, segment in enumerate(linear.segments):
            if segment.data is not None and not segment.is_ready:
                self._executor.fill(index, number, np.frombuffer(segment.raw(), np.uint8))
            segment.data = None

    @property
    def packed_bytes(self) -> int:
        """Bytes of packed weights."""
        return self.sizes.packed_bytes

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations, logits included."""
        return self.sizes.arena_bytes

    def forward(self, batch: BatchArrays) -> Float32:
        """Logits of the wanted rows: [R, vocab_size]."""
        logits, _ = self._forward(batch)
        return logits

    def pool(self, batch: BatchArrays) -> Float32:
        """Pooled rows: [P, width]."""
        _, pooled = self._forward(batch)
        return pooled

    def _forward(self, batch: BatchArrays) -> tuple[Float32, Float32]:
        arrays = self._batch_tuple(batch)
        logits = np.empty((len(arrays[6]), self.vocab_size), np.float32)
        self._executor.forward(arrays, logits)
        return logits, arrays[8]

    def step(self, batch: BatchArrays, sampling: SamplingArrays) -> StepResult:
        """Run the batch and choose a token for every logit row."""
        arrays = self._batch_tuple(batch)
        wanted = wanted_tuple(sampling, self.vocab_size)
        result = StepResult.empty(len(arrays[6]), sampling)
        self._executor.step(arrays, wanted, result.as_tuple())
        return result

    def choose(self, sampling: SamplingArrays) -> StepResult:
        """Choose a token for every logit row of the batch just computed."""
        result = StepResult.empty(len(sampling.num_logprobs), sampling)
        self._executor.choose(wanted_tuple(sampling, self.vocab_size), result.as_tuple())
        return result

    def start(self, batch: BatchArrays, sampling: SamplingArrays | None) -> Started:
        """Have a step run as soon as those started before it have ended.

        A token id of -1 - r means the id that the step before this one chooses for its logit row r.
        Without ``sampling`` it is computed only: ``choose`` follows once it is finished, before
        anything else is started.
        """
        arrays = self._batch_tuple(batch)
        pooled = arrays[8]
        if sampling is None:
            return Started(self._executor.start_compute(arrays), None, pooled)
        wanted = wanted_tuple(sampling, self.vocab_size)
        result = StepResult.empty(len(arrays[6]), sampling)
        number = self._executor.start(arrays, wanted, result.as_tuple())
        return Started(number, result, pooled)

    def finish(self, started: Started) -> None:
        """Wait for a step that was started, until its result is there; raises what it raised."""
        self._executor.finish(started.number)

    @property
    def busy_ns(self) -> int:
        """Wall time that steps which were started have run so far."""
        return self._executor.busy_ns()

    def start_profile(self) -> None:
        """Measure every operator from now on (two clock readings each); what was is forgotten."""
        self._executor.start_profile()

    def profile(self) -> list[OperatorTime]:
        """Where the steps since ``start_profile`` spent their time, in the program's order."""
        times = self._executor.profile()
        named = zip(self._names, times, strict=False)
        return [OperatorTime(kind, name, time_ns) for (kind, name), time_ns in named]

    def copy_block(self, source: int, target: int) -> None:
        """Copy the keys and values of a KV block of every layer."""
        self._executor.copy_block(source, target)

    def wipe_block(self, block: int) -> None:
        """Overwrite the keys and values of a KV block of every layer with zeros."""
        self._executor.wipe_block(block)

    def packed(self, linear: PackedLinear, segment: int) -> bytes:
        """A segment's packed bytes, for tests of the layout."""
        index = next(i for i, other in enumerate(self._linears) if other is linear)
        return self._executor.packed(index, segment)

    def _batch_tuple(self, b: BatchArrays) -> _native.BatchTuple:
        """In the order the extension takes them, with room for the pooled rows."""
        return (
            checked_array("token_ids", b.token_ids, np.int32, 1),
            checked_array("positions", b.positions, np.int32, 1),
            checked_array("slot_mapping", b.slot_mapping, np.int32, 1),
            checked_array("block_table", b.block_table, np.int32, 2),
            checked_array("query_start_loc", b.query_start_loc, np.int32, 1),
            checked_array("seq_lens", b.seq_lens, np.int32, 1),
            checked_array("logit_rows", b.logit_rows, np.int32, 1),
            checked_array("pooled_rows", b.pooled_rows, np.int32, 1),
            np.empty((len(b.pooled_rows), self.pooled_width), np.float32),
        )

    def close(self) -> None:
        """Stop the threads and give all memory back; a step under way ends first."""
        self._executor.close()


def sample(
    logits: Float32, sampling: SamplingArrays, *, num_threads: int = 1, isa: str | None = None
) -> StepResult:
    """Choose a token for every row of logits [R, vocab_size], as ``Native.step`` does."""
    isa = selected_isa() if isa is None else _checked(isa, "isa")
    wanted = wanted_tuple(sampling, logits.shape[1])
    result = StepResult.empty(len(logits), sampling)
    # A copy: edits change the rows they are for.
    _native.sample(isa, logits.copy(), wanted, result.as_tuple(), num_threads)
    return result
