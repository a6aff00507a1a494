"""The KV layout a decoder needs.

Not here: blocks or their memory; engine and kernels own those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.kernels.kv_layout import KVLayout

if TYPE_CHECKING:
    from insitu.kernels.kv_layout import KVDtype
    from insitu.models.spec import DecoderSpec


def kv_layout(spec: DecoderSpec, *, block_size: int = 32, dtype: KVDtype = "f16") -> KVLayout:
    """What one KV block of this decoder holds."""
    heads = spec.attention
    return KVLayout(spec.num_layers, heads.num_kv_heads, heads.head_dim, block_size, dtype)
