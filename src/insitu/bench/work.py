"""What a step needs: bytes to read, operations to do, counted from the program and the batch.

Not here: how long anything took. A multiplication and an addition are two operations.

Always true: what is counted is the least that any implementation would read or do: each weight
once a step, each key and value once a sequence and layer. Norms, rotations, activations and
sampling count as nothing, so a share of a ceiling is never flattered by them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.kernels.native import packed_bytes
from insitu.kernels.program import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from insitu.kernels.kv_layout import KVLayout
    from insitu.kernels.pack import PackedLinear
    from insitu.kernels.program import Op, Program

_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes read and operations done, of whole matrices (int8, float32) and of attention."""

    read_bytes: int = 0
    int8_ops: int = 0
    float32_ops: int = 0
    attention_ops: int = 0

    def __add__(self, other: Work) -> Work:
        """Both."""
        return Work(
            self.read_bytes + other.read_bytes,
            self.int8_ops + other.int8_ops,
            self.float32_ops + other.float32_ops,
            self.attention_ops + other.attention_ops,
        )

    @property
    def matmul_ops(self) -> int:
        """Of matrices, in either arithmetic."""
        return self.int8_ops + self.float32_ops


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence that then is ``seq_len`` tokens long."""

    num_tokens: int
    seq_len: int

    def num_pairs(self, window: int) -> int:
        """Pairs of a new token and a position that it attends to; a window of 0 is none."""
        first = self.seq_len - self.num_tokens + 1
        most = window or self.seq_len
        return sum(min(seen, most) for seen in range(first, self.seq_len + 1))

    def num_read(self, window: int) -> int:
        """Positions that some new token attends to."""
        return min(self.seq_len, self.num_tokens + window - 1) if window else self.seq_len


def step_work(
    program: Program, kv: KVLayout, spans: Sequence[Span], num_logit_rows: int
) -> dict[str, Work]:
    """Work of one step by ``operator_name``."""
    return merged([dict([one]) for one in _operators(program, kv, spans, num_logit_rows)])


def merged(works: Sequence[dict[str, Work]]) -> dict[str, Work]:
    """Work of several steps, operator by operator."""
    sums: dict[str, Work] = {}
    for name, one in (item for work in works for item in work.items()):
        sums[name] = sums.get(name, Work()) + one
    return sums


def total(work: dict[str, Work]) -> Work:
    """All operators together."""
    return sum(work.values(), Work())


def operator_name(kind: str, weight_name: str) -> str:
    """One name for an operator of all layers: a linear's is its first tensor's, layer left out."""
    short = _LAYER.sub("*", weight_name).removesuffix(".weight")
    return f"{kind} {short}" if kind == "linear" else kind


def _operators(
    program: Program, kv: KVLayout, spans: Sequence[Span], num_logit_rows: int
) -> Iterator[tuple[str, Work]]:
    num_rows = {
        Rows.TOKENS: sum(span.num_tokens for span in spans),
        Rows.LOGITS: num_logit_rows,
        Rows.POOLED: 0,
    }
    for op in program.ops:
        if op.kind == "linear":
            weight: PackedLinear = op.weight
            rows = num_rows[op.outputs[0].rows]
            yield operator_name("linear", weight.segments[0].name), _linear(weight, rows)
        elif op.kind == "experts":
            yield "experts", _experts(op, num_rows[op.outputs[0].rows])
        elif op.kind == "attention":
            yield "attention", _attention(op, kv, spans)


def _linear(weight: PackedLinear, num_rows: int) -> Work:
    int8_ops = float32_ops = 0
    for segment in weight.segments:
        ops = 2 * num_rows * segment.n * segment.k
        if segment.block_type.activation_group:
            int8_ops += ops
        else:
            float32_ops += ops
    return Work(packed_bytes(weight) if num_rows else 0, int8_ops, float32_ops)


def _experts(op: Op, num_rows: int) -> Work:
    """The bytes are those of as many experts as the rows could choose at most."""
    pairs = list(zip(op.weight.gate_up, op.weight.down, strict=True))
    num_chosen = num_rows * op.attributes["num_active"]
    work = Work()
    for linear in pairs[0]:
        one = _linear(linear, num_chosen)
        num_read = min(num_chosen, len(pairs))
        work += Work(one.read_bytes * num_read, one.int8_ops, one.float32_ops)
    return work


def _attention(op: Op, kv: KVLayout, spans: Sequence[Span]) -> Work:
    """Of one layer: scores and sums over values are each a multiplication and an addition."""
    window = op.attributes["window"]
    num_pairs = sum(span.num_pairs(window) for span in spans)
    width = op.attributes["num_heads"] * op.attributes["head_dim"]
    num_read = sum(span.num_read(window) for span in spans)
    kv_bytes = num_read * kv.bytes_per_token // kv.num_layers
    return Work(kv_bytes, attention_ops=4 * num_pairs * width)
