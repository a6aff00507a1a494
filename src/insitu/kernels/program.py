"""A forward pass, recorded once as a flat list of operators over named tensors.

Not here: any arithmetic. A ``Program`` is data; ``reference`` and ``native`` interpret it,
``passes`` rewrite it, ``memory`` places its tensors. ``ops`` checks shapes while recording.

Always true: an operator's inputs were recorded before it; a view never owns memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from insitu.kernels import ops as rules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.kernels.pack import Experts, PackedLinear

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


class Rows(StrEnum):
    """What a tensor has one row of: a token, or one that logits, or a pooled row, are wanted of."""

    TOKENS = "tokens"
    LOGITS = "logits"
    POOLED = "pooled"


class DType(StrEnum):
    """Element type of a tensor between operators."""

    F32 = "f32"
    I32 = "i32"
    Q8_G32 = "q8_g32"  # quantize_rows with one scale per 32 inputs
    Q8_G256 = "q8_g256"  # quantize_rows with one scale per 256 inputs


# How many inputs share a scale, by quantised type.
GROUPS = {DType.Q8_G32: 32, DType.Q8_G256: 256}


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value [rows, width]; with ``base`` it is columns [column, column + width) of that."""

    name: str
    rows: Rows
    width: int
    dtype: DType = DType.F32
    base: Tensor | None = None
    column: int = 0

    @property
    def owner(self) -> Tensor:
        """The tensor whose memory this is: itself, or the base of a view."""
        return self if self.base is None else self.base

    def split(self, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Views of neighbouring columns, in order."""
        rules.split(self, sizes)
        views, column = [], self.column
        for index, size in enumerate(sizes):
            name = f"{self.name}.{index}"
            views.append(Tensor(name, self.rows, size, self.dtype, self.owner, column))
            column += size
        return tuple(views)


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operator: its kind, what it reads, what it writes, its weight and plain attributes.

    Whatever the kind, an output of a quantised type holds the operator's floats as
    ``quantize_rows`` would have written them. A linear with an ``activation`` writes its two
    halves gated.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


class BatchArrays(Protocol):
    """One step's work: T tokens of S sequences, each one's consecutive; R and P rows are wanted."""

    @property
    def token_ids(self) -> Int32:
        """[T]."""
        ...

    @property
    def positions(self) -> Int32:
        """[T], counted from 0 in each sequence."""
        ...

    @property
    def slot_mapping(self) -> Int32:
        """[T] block_id * block_size + offset: where a token's key and value are stored."""
        ...

    @property
    def block_table(self) -> Int32:
        """[S, max_blocks_of_batch] block ids of each sequence, in order."""
        ...

    @property
    def query_start_loc(self) -> Int32:
        """[S + 1] the first row of each sequence, and T."""
        ...

    @property
    def seq_lens(self) -> Int32:
        """[S] tokens of each sequence up to and including this step's."""
        ...

    @property
    def logit_rows(self) -> Int32:
        """[R] rows of T that logits are wanted of."""
        ...

    @property
    def pooled_rows(self) -> Int32:
        """[P] rows of T that pooled rows are wanted of."""
        ...


class Program:
    """Record operators in order; each method checks shapes and returns what the operator writes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.token_ids = Tensor("token_ids", Rows.TOKENS, 1, DType.I32)
        self.positions = Tensor("positions", Rows.TOKENS, 1, DType.I32)
        self.logit_rows = Tensor("logit_rows", Rows.LOGITS, 1, DType.I32)
        self.pooled_rows = Tensor("pooled_rows", Rows.POOLED, 1, DType.I32)
        self.logits: Tensor | None = None
        self.pooled: Tensor | None = None
        # Set by quantize_activations: from then on the numeric definition holds.
        self.is_quantized = False

    def rewritten(self, ops: Sequence[Op], *, is_quantized: bool | None = None) -> Program:
        """The same inputs and outputs with other operators: what a pass returns."""
        program = Program()
        program.ops = list(ops)
        program.token_ids, program.positions = self.token_ids, self.positions
        program.logit_rows, program.logits = self.logit_rows, self.logits
        program.pooled_rows, program.pooled = self.pooled_rows, self.pooled
        program.is_quantized = self.is_quantized if is_quantized is None else is_quantized
        return program

    def embed(self, weight: PackedLinear, token_ids: Tensor) -> Tensor:
        """Rows of ``weight`` of these ids (or positions), dequantised: [T, k]."""
        width = rules.embed(weight, token_ids)
        return self._record("embed", (token_ids,), width, weight=weight)

    def rms_norm(self, x: Tensor, weight: Float32, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight: [T, width].

        A weight shorter than a row (that of one head) norms each part of its length by itself.
        """
        width = rules.rms_norm(x, len(weight), eps)
        return self._record("rms_norm", (x,), width, weight=weight, eps=float(eps))

    def layer_norm(self, x: Tensor, weight: Float32, bias: Float32, eps: float) -> Tensor:
        """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias: [T, width]."""
        width = rules.layer_norm(x, len(weight), len(bias), eps)
        both = np.concatenate([weight, bias])
        return self._record("layer_norm", (x,), width, weight=both, eps=float(eps))

    def linear(self, x: Tensor, weight: PackedLinear, residual: Tensor | None = None) -> Tensor:
        """x times the transposed weight, plus its bias, plus ``residual``: [T, n].

        ``groups`` says which forms of x come first among the inputs: one a distinct activation
        group, 0 being float rows. A segment whose group is not among them is dequantised.
        """
        width = rules.linear(x, weight, residual)
        inputs = (x,) if residual is None else (x, residual)
        has_residual = residual is not None
        return self._record(
            "linear", inputs, width, weight=weight, groups=(0,), has_residual=has_residual
        )

    def rope_angles(
        self, dim: int, theta: float, divisors: Sequence[float] = (), magnitude: float = 1.0
    ) -> Tensor:
        """magnitude * cos (first half) and sin of position * theta^(-2i / dim) / divisor: [T, dim].

        There is one divisor a pair i, or none.
        """
        width = rules.rope_angles(self.positions, dim, theta, divisors, magnitude)
        return self._record(
            "rope_angles",
            (self.positions,),
            width,
            dim=dim,
            theta=theta,
            divisors=tuple(divisors),
            magnitude=magnitude,
        )

    def rope(
        self, x: Tensor, angles: Tensor, num_heads: int, head_dim: int, pairing: str
    ) -> Tensor:
        """Rotate the first angles.width dims of every head, in place: pairs are (2i, 2i + 1) when
        ``adjacent``, (i, i + dim / 2) in ``halves``."""
        rules.rope(x, angles, num_heads, head_dim, pairing)
        attributes = {"num_heads": num_heads, "head_dim": head_dim, "pairing": pairing}
        self.ops.append(Op("rope", (x, angles), (x,), attributes=attributes))
        return x

    def attention(  # noqa: PLR0913
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        layer: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Tensor:
        """Store k and v in the cache, then attend causally over it: [T, num_heads * head_dim].

        A token attends to the last ``window`` positions, its own included, or to all with 0. With a
        ``soft_cap`` scores become cap * tanh(score / cap).
        """
        width = rules.attention(
            q,
            k,
            v,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            window=window,
            soft_cap=soft_cap,
        )
        return self._record(
            "attention",
            (q, k, v),
            width,
            layer=layer,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=float(scale),
            window=window,
            soft_cap=float(soft_cap),
        )

    def gated(self, activation: str, x: Tensor) -> Tensor:
        """activation(gate) * up of x = gate columns, then up columns: [T, width / 2]."""
        return self._record("gated", (x,), rules.gated(x, activation), activation=activation)

    def activate(self, activation: str, x: Tensor) -> Tensor:
        """activation(x): [T, width]."""
        width = rules.activate(x, activation)
        return self._record("activate", (x,), width, activation=activation)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """factor * x: [T, width]."""
        return self._record("scale", (x,), rules.scale(x, factor), scale=float(factor))

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap): [T, width]."""
        return self._record("soft_cap", (x,), rules.soft_cap(x, cap), soft_cap=float(cap))

    def gate_rows(self, x: Tensor, gate: Tensor) -> Tensor:
        """x * sigmoid(gate), one gate a row: [T, width]."""
        return self._record("gate_rows", (x, gate), rules.gate_rows(x, gate))

    def route(self, logits: Tensor, num_active: int, *, is_normalised: bool) -> Tensor:
        """Weights of a mixture: [T, num_experts], 0 for all but the ``num_active`` highest logits.

        They are the softmax over all experts, or over the chosen ones where it is normalised.
        """
        width = rules.route(logits, num_active)
        return self._record(
            "route", (logits,), width, num_active=num_active, is_normalised=is_normalised
        )

    def experts(
        self, activation: str, x: Tensor, routing: Tensor, weight: Experts, num_active: int
    ) -> Tensor:
        """Sum of weight * down(gated(gate_up x)) over a row's experts, in their order: [T, n].

        An expert of weight 0 is not asked; at most ``num_active`` of a row's are not 0.
        """
        width = rules.experts(x, routing, weight.gate_up, weight.down, activation)
        return self._record(
            "experts",
            (x, routing),
            width,
            weight=weight,
            activation=activation,
            num_active=num_active,
        )

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """a + b."""
        return self._record("add", (a, b), rules.add(a, b))

    def take(self, x: Tensor, wanted: Tensor) -> Tensor:
        """The rows of x that logits (or pooled rows) are wanted of: [R, width] or [P, width]."""
        width = rules.take(x, wanted)
        return self._record("take", (x, wanted), width, rows=wanted.rows)

    def output(self, logits: Tensor, pooled: Tensor | None = None) -> Program:
        """Mark the tensors a step answers with; what only one of them needs runs for it alone."""
        if logits.rows is not Rows.LOGITS:
            raise rules.ShapeError(f"output({logits.name}): needs one row a logit row")
        if pooled is not None and pooled.rows is not Rows.POOLED:
            raise rules.ShapeError(f"output({pooled.name}): needs one row a pooled row")
        self.logits, self.pooled = logits, pooled
        return self

    @property
    def inputs(self) -> frozenset[Tensor]:
        """What a batch brings."""
        return frozenset((self.token_ids, self.positions, self.logit_rows, self.pooled_rows))

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What a step answers with."""
        return tuple(one for one in (self.logits, self.pooled) if one is not None)

    def _record(
        self,
        kind: str,
        inputs: tuple[Tensor, ...],
        width: int,
        *,
        weight: Any = None,
        rows: Rows | None = None,
        **attributes: Any,
    ) -> Tensor:
        output = Tensor(f"{kind}_{len(self.ops)}", rows or inputs[0].rows, width)
        self.ops.append(Op(kind, inputs, (output,), weight, attributes))
        return output
