"""Place every tensor of a Program in one buffer, reusing bytes whose tensor is dead.

Not here: weights, KV blocks or the batch's own arrays; only what operators write.

Always true: two tensors that are alive during the same operator never overlap; an operator's
output never overlaps its inputs (unless it is one of them); every offset is a multiple of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from insitu.kernels.program import DType, Program, Rows, Tensor

ALIGNMENT = 64  # bytes: a cache line, and the widest vector

QuantizedBytes = Callable[[int, int, int], int]  # (num_rows, k, group) -> bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where each owning tensor begins, in bytes, and how many bytes all of them need."""

    offset_of: dict[Tensor, int]
    size_bytes: int


def quantized_bytes(num_rows: int, k: int, group: int) -> int:
    """Bytes of quantised rows: int8 values, a float32 scale a group, an int32 sum per 16."""
    return num_rows * (k + 4 * (k // group) + 4 * (k // 16))


def plan_memory(
    program: Program,
    max_num_tokens: int,
    max_num_logit_rows: int,
    quantized: QuantizedBytes = quantized_bytes,
) -> MemoryPlan:
    """Place tensors first-fit, in the order they are first written.

    As many pooled rows are wanted at most as rows of logits.
    """
    max_rows = dict.fromkeys(Rows, max_num_logit_rows) | {Rows.TOKENS: max_num_tokens}
    offset_of: dict[Tensor, int] = {}
    end_bytes = 0
    placed: list[tuple[int, int, int]] = []  # (offset, end offset, last operator that needs it)
    for tensor, (first, last) in _lifetimes(program).items():
        size = _align(_size_bytes(tensor, max_rows[tensor.rows], quantized))
        placed = [other for other in placed if other[2] >= first]
        offset = _first_gap(placed, size)
        offset_of[tensor] = offset
        placed.append((offset, offset + size, last))
        end_bytes = max(end_bytes, offset + size)
    return MemoryPlan(offset_of, end_bytes)


def _first_gap(placed: list[tuple[int, int, int]], size: int) -> int:
    offset = 0
    for start, end, _ in sorted(placed):
        if start - offset >= size:
            break
        offset = max(offset, end)
    return offset


def _lifetimes(program: Program) -> dict[Tensor, tuple[int, int]]:
    """Index of the first and last operator that touches each owner, in order of first write."""
    inputs = program.inputs
    lifetimes: dict[Tensor, tuple[int, int]] = {}
    for index, op in enumerate(program.ops):
        for tensor in (*op.inputs, *op.outputs):
            owner = tensor.owner
            if owner not in inputs:
                first, _ = lifetimes.get(owner, (index, index))
                lifetimes[owner] = (first, index)
    for output in program.outputs:
        first, _ = lifetimes[output.owner]
        lifetimes[output.owner] = (first, len(program.ops))
    return lifetimes


def _size_bytes(tensor: Tensor, num_rows: int, quantized: QuantizedBytes) -> int:
    if tensor.dtype is DType.Q8_G32:
        return quantized(num_rows, tensor.width, 32)
    if tensor.dtype is DType.Q8_G256:
        return quantized(num_rows, tensor.width, 256)
    return num_rows * tensor.width * 4


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
