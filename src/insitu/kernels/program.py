"""A forward pass, recorded once as a flat list of operators over named tensors.

Not here: any arithmetic. A ``Program`` is data; ``reference`` and ``native`` interpret it, and
``passes`` rewrite it. ``ops`` checks shapes while recording.

Always true: an operator's inputs were recorded before it; a view never owns memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Rows(StrEnum):
    """What a tensor has one row of: every token of the batch, or every row logits are wanted of."""

    TOKENS = "tokens"
    LOGITS = "logits"


class DType(StrEnum):
    """Element type of a tensor between operators."""

    F32 = "f32"
    I32 = "i32"
    Q8_G32 = "q8_g32"  # quantize_rows with one scale per 32 inputs
    Q8_G256 = "q8_g256"  # quantize_rows with one scale per 256 inputs


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value of shape [rows, width]; with ``base`` it is columns [column, column + width) of that."""

    name: str
    rows: Rows
    width: int
    dtype: DType = DType.F32
    base: Tensor | None = None
    column: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Op:
    """One operator: its kind, what it reads, what it writes, its weight and plain attributes."""

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    weight: Any = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
