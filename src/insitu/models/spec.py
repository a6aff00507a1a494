"""What a decoder is, in numbers: everything the recorder needs and nothing about files.

Not here: reading (``config``) or weights (``decoder``).

Always true: a DecoderSpec that exists is one the kernels can run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Attention kernels run 16 lanes over a head's dims.
HEAD_DIM_MULTIPLE = 16


class SpecError(ValueError):
    """Numbers that do not make a decoder; ``field`` is the one at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The first ``dim`` dims of a head turn by position / factor * theta^(-2i/dim)."""

    theta: float
    dim: int
    pairing: Literal["adjacent", "halves"]
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Sizes and constants of a decoder-only transformer."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    rope: RopeSpec
    max_model_len: int
    activation: str = "silu"

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other, naming the field."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        _require("num_kv_heads", heads % kv_heads == 0, f"{kv_heads} does not divide {heads} heads")
        is_multiple = self.head_dim % HEAD_DIM_MULTIPLE == 0
        _require("head_dim", is_multiple, f"{self.head_dim} is not a multiple of 16")
        fits = self.rope.dim % 2 == 0 and self.rope.dim <= self.head_dim
        wanted = f"{self.rope.dim} is not even or exceeds head_dim {self.head_dim}"
        _require("rope dim", fits, wanted)

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Outputs of the query, key and value projections."""
        kv_size = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv_size, kv_size


def _require(field: str, holds: bool, message: str) -> None:
    if not holds:
        raise SpecError(field, message)
