"""The shape and stored type of the KV cache's blocks.

Not here: who holds a block (the engine's block pool), or its memory (native, reference).

Always true: a token's key and value take the same bytes in every layer and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KVDtype = Literal["f16", "bf16", "f32", "int8"]
KV_DTYPES: tuple[KVDtype, ...] = ("f16", "bf16", "f32", "int8")
_ELEMENT_BYTES: dict[KVDtype, int] = {"f16": 2, "bf16": 2, "f32": 4, "int8": 1}

# A block, per layer: [num_kv_heads] of { K: [block_size / 16 tiles][head_dim][16 positions];
# V: [block_size][head_dim] }. int8 has float32 scales behind them: K's [block_size], then V's.
TILE = 16


@dataclass(frozen=True, slots=True)
class KVLayout:
    """What one KV block holds: ``block_size`` tokens of every layer."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int = 32
    dtype: KVDtype = "f16"

    def __post_init__(self) -> None:
        """Refuse shapes the tiles cannot hold."""
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("head_dim", "block_size"):
            if getattr(self, name) % TILE:
                raise ValueError(f"{name} {getattr(self, name)} is not a multiple of {TILE}")
        if self.dtype not in KV_DTYPES:
            raise ValueError(f"KV dtype {self.dtype!r} is not one of {', '.join(KV_DTYPES)}")

    @property
    def bytes_per_token(self) -> int:
        """Key and value of one token in all layers, their scales included."""
        scale_bytes = 4 if self.dtype == "int8" else 0
        row_bytes = self.head_dim * _ELEMENT_BYTES[self.dtype] + scale_bytes
        return 2 * self.num_layers * self.num_kv_heads * row_bytes

    @property
    def bytes_per_block(self) -> int:
        """One block in all layers."""
        return self.bytes_per_token * self.block_size
