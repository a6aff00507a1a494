"""What a decoder is, in numbers: everything the recorder needs and nothing about files.

Not here: reading (``config``, ``rope``) or weights (``weights``). What a decoder merely has or has
not (a bias, a norm after attention, a norm of queries) is said by its weights, not here.

Always true: a DecoderSpec that exists is one the kernels can run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# Attention kernels run 16 lanes over a head's dims.
HEAD_DIM_MULTIPLE = 16

Pairing = Literal["adjacent", "halves"]
NormKind = Literal["rms", "layer"]


class SpecError(ValueError):
    """Numbers that do not make a decoder; ``field`` is the one at fault."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """The first ``dim`` dims of a head turn by position * theta^(-2i/dim) / divisors[i]."""

    theta: float
    dim: int
    pairing: Pairing
    divisors: tuple[float, ...] = ()  # one a pair, or none
    magnitude: float = 1.0  # of cosine and sine
    scaling: str = "none"  # what the divisors come from, for a person to read


@dataclass(frozen=True, slots=True)
class NormSpec:
    """How rows are normed: by their root mean square, or around their mean."""

    kind: NormKind
    eps: float


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Heads of every layer; scores are scaled, then capped as cap * tanh(score / cap)."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    soft_cap: float = 0.0  # 0: none

    @property
    def qkv_sizes(self) -> tuple[int, int, int]:
        """Outputs of the query, key and value projections."""
        kv_size = self.num_kv_heads * self.head_dim
        return self.num_heads * self.head_dim, kv_size, kv_size


@dataclass(frozen=True, slots=True)
class MlpSpec:
    """down(activation(gate x) * up x), or down(activation(up x)) without a gate."""

    size: int
    activation: str = "silu"
    is_gated: bool = True


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """A row goes through the ``num_active`` experts with the highest softmax of the router."""

    expert: MlpSpec
    num_experts: int
    num_active: int
    is_normalised: bool  # the chosen experts' weights are made to sum to 1
    shared: MlpSpec | None = None  # an expert that every row goes through


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    rope: RopeSpec | None  # None: positions are not told
    mlp: MlpSpec | MoeSpec
    window: int = 0  # positions a token attends to, its own included; 0: all


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Factors of the embedding, of what each block adds, and of the logits, which may be capped."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logit_soft_cap: float = 0.0  # 0: none


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Sizes and constants of a decoder-only transformer."""

    hidden_size: int
    vocab_size: int
    max_model_len: int
    norm: NormSpec
    attention: AttentionSpec
    layers: tuple[LayerSpec, ...]
    multipliers: Multipliers = Multipliers()
    num_positions: int | None = None  # rows of a table of positions, which are then learned

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other, naming the field."""
        heads, kv_heads = self.attention.num_heads, self.attention.num_kv_heads
        _require("num_kv_heads", heads % kv_heads == 0, f"{kv_heads} does not divide {heads} heads")
        head_dim = self.attention.head_dim
        is_multiple = head_dim % HEAD_DIM_MULTIPLE == 0
        _require("head_dim", is_multiple, f"{head_dim} is not a multiple of 16")
        for rope in self.ropes:
            fits = rope.dim % 2 == 0 and 0 < rope.dim <= head_dim
            wanted = f"{rope.dim} is not even, or not within head_dim {head_dim}"
            _require("rope dim", fits, wanted)
            num = len(rope.divisors)
            fits = num in (0, rope.dim // 2)
            _require("rope scaling", fits, f"has {num} factors for {rope.dim // 2} pairs")
            fits = all(math.isfinite(x) and x > 0 for x in (rope.magnitude, *rope.divisors))
            _require("rope scaling", fits, "gives factors that are not above 0, or not finite")
        for moe in (layer.mlp for layer in self.layers if isinstance(layer.mlp, MoeSpec)):
            wanted = f"{moe.num_active} exceeds the {moe.num_experts} experts"
            _require("num_active", moe.num_active <= moe.num_experts, wanted)

    @property
    def num_layers(self) -> int:
        """How many layers."""
        return len(self.layers)

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The distinct ways in which positions turn heads."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers if layer.rope is not None))


def _require(field: str, holds: bool, message: str) -> None:
    if not holds:
        raise SpecError(field, message)
