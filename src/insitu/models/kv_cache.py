"""The KV layout a decoder needs.

Not here: blocks or their memory; engine and kernels own those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from insitu.kernels.kv_layout import KVLayout

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec


def kv_layout(
    spec: DecoderSpec, *, block_size: int = 32, dtype: Literal["f16", "f32"] = "f16"
) -> KVLayout:
    """What one KV block of this decoder holds."""
    return KVLayout(spec.num_layers, spec.num_kv_heads, spec.head_dim, block_size, dtype)
