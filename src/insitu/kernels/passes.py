"""Program to Program: quantise activations, fold operators into the ones that feed them.

Not here: any change of meaning beyond what a pass is named for. The passes named fuse keep every
bit; ``quantize_activations`` is where the numeric definition begins. ``lower`` is all of them.

Always true: a pass returns a fresh Program and leaves the one it was given alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.kernels import ops as rules
from insitu.kernels.program import DType, Op, Program, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.pack import PackedLinear

NORMS = ("rms_norm", "layer_norm")
QUANTIZED = {32: DType.Q8_G32, 256: DType.Q8_G256}


def lower(program: Program) -> Program:
    """Every pass, in order: the Program that kernels run."""
    program = fuse_soft_cap(fuse_gated(fuse_residual(program)))
    return fuse_quantize(quantize_activations(program))


def fuse_residual(program: Program) -> Program:
    """Turn add(x, linear(...)) into linear(..., residual=x) where nothing else reads the linear."""
    readers = _num_readers(program)
    fused: list[Op] = []
    made_by: dict[Tensor, int] = {}  # output of a linear that may still take a residual -> index
    for op in program.ops:
        if op.kind == "add":
            merged = _merge_add(op, fused, made_by, readers)
            if merged:
                continue
        if op.kind == "linear" and not op.attributes["has_residual"]:
            made_by[op.outputs[0]] = len(fused)
        fused.append(op)
    return program.rewritten(fused)


def _merge_add(
    add: Op, fused: list[Op], made_by: dict[Tensor, int], readers: dict[Tensor, int]
) -> bool:
    """Replace the linear that ``add`` reads; False if none of its inputs is one it may swallow."""
    for mine, other in (add.inputs[::-1], add.inputs):
        index = made_by.get(mine)
        # Only the operator just before: moving a linear could make it read a residual too early.
        if index is None or index != len(fused) - 1 or readers[mine] != 1 or mine is other:
            continue
        linear = fused[index]
        attributes = {**linear.attributes, "has_residual": True}
        inputs = (*linear.inputs, other)
        fused[index] = Op("linear", inputs, add.outputs, linear.weight, attributes)
        return True
    return False


def fuse_gated(program: Program) -> Program:
    """Turn gated(linear(...)) into one linear where gate and up are two like halves of its weight.

    The linear then writes what ``gated`` wrote: its gate and up columns are never stored.
    """
    return _fuse_after_linears(program, "gated", _is_of_like_halves)


def fuse_soft_cap(program: Program) -> Program:
    """Turn soft_cap(linear(...)) into one linear, which caps what it has just made."""
    return _fuse_after_linears(
        program, "soft_cap", lambda linear: "activation" not in linear.attributes
    )


def _fuse_after_linears(program: Program, kind: str, may_take: Callable[[Op], bool]) -> Program:
    """Give what is named ``kind`` and reads a linear alone to that linear as an attribute."""
    readers = _num_readers(program)
    fused: list[Op] = []
    for op in program.ops:
        before = fused[-1] if fused else None
        if (
            op.kind == kind
            and before is not None
            and _is_fed(op, before, readers)
            and may_take(before)
        ):
            attributes = {**before.attributes, **op.attributes}
            fused[-1] = Op("linear", before.inputs, op.outputs, before.weight, attributes)
        else:
            fused.append(op)
    return program.rewritten(fused)


def _is_fed(op: Op, linear: Op, readers: dict[Tensor, int]) -> bool:
    """The linear's output is what ``op`` reads, and nothing else does."""
    (x,) = op.inputs
    return linear.kind == "linear" and linear.outputs[0] is x and readers[x] == 1


def _is_of_like_halves(linear: Op) -> bool:
    segments = linear.weight.segments
    halves = len(segments) == 2 and segments[0].n == segments[1].n
    return halves and not linear.attributes["has_residual"]


def _num_readers(program: Program) -> dict[Tensor, int]:
    """How many operators read each tensor or a view of it (outputs are read once more)."""
    readers: dict[Tensor, int] = {}
    for op in program.ops:
        for tensor in (*op.inputs, *op.outputs):
            readers.setdefault(tensor.owner, 0)
        for tensor in op.inputs:
            readers[tensor.owner] += 1
    for output in program.outputs:
        readers[output.owner] += 1
    return readers


def quantize_activations(program: Program) -> Program:
    """Insert quantize_rows before linears, once per tensor and activation group that occurs.

    What norms make, where outliers are, is quantised as rows, all else by columns: the groups of
    a gated linear's outputs are made one by one.
    """
    rewritten: list[Op] = []
    forms: dict[tuple[Tensor, int], Tensor] = {}
    normed: set[Tensor] = set()
    for op in program.ops:
        if op.kind in NORMS or (op.kind == "take" and op.inputs[0] in normed):
            normed.update(op.outputs)
        if op.kind == "linear":
            rewritten.append(_with_quantized_inputs(op, forms, rewritten, normed))
        else:
            rewritten.append(op)
        for written in op.outputs:  # an operator in place makes earlier forms stale
            for key in [key for key in forms if key[0].owner is written.owner]:
                del forms[key]
    return program.rewritten(rewritten, is_quantized=True)


def _with_quantized_inputs(
    op: Op, forms: dict[tuple[Tensor, int], Tensor], rewritten: list[Op], normed: set[Tensor]
) -> Op:
    weight: PackedLinear = op.weight
    x, *residual = op.inputs
    inputs = []
    for group in weight.groups:
        if group and (x, group) not in forms:
            width = rules.quantize_rows(x, group)
            form = Tensor(f"{x.name}.q{group}", x.rows, width, QUANTIZED[group])
            forms[x, group] = form
            how = {"group": group, "by_columns": x not in normed}
            rewritten.append(Op("quantize_rows", (x,), (form,), attributes=how))
        inputs.append(forms[x, group] if group else x)
    attributes = {**op.attributes, "groups": weight.groups}
    return Op("linear", (*inputs, *residual), op.outputs, weight, attributes)


def fuse_quantize(program: Program) -> Program:
    """Let norms and gated linears write int8 rows themselves where nothing else reads their floats.

    A gated linear makes 32 columns at a time, so only groups of 32 are whole there.
    """
    readers = _num_readers(program)
    made_by: dict[Tensor, int] = {}
    fused: list[Op] = []
    for op in program.ops:
        index = made_by.get(op.inputs[0]) if op.kind == "quantize_rows" else None
        if index is not None and readers[op.inputs[0]] == 1:
            maker = fused[index]
            if maker.kind == "rms_norm" or op.attributes["group"] == 32:
                fused[index] = replace(maker, outputs=op.outputs)
                continue
        if op.kind == "rms_norm" or ("activation" in op.attributes and op.kind == "linear"):
            made_by[op.outputs[0]] = len(fused)
        fused.append(op)
    return program.rewritten(fused)
