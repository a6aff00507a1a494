"""Record a decoder's forward pass: token ids in, logits of the wanted rows out.

Not here: anything one family does differently, or files. Families fill ``Weights``.

Always true: the recorded Program is the float definition; passes quantise and fuse it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.kernels.program import Program

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from insitu.kernels.pack import PackedLinear
    from insitu.kernels.program import Tensor
    from insitu.models.spec import DecoderSpec

    Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's tensors; query, key and value are one linear, as are gate and up."""

    attention_norm: Float32
    qkv: PackedLinear
    o_proj: PackedLinear
    mlp_norm: Float32
    gate_up: PackedLinear
    down_proj: PackedLinear


@dataclass(frozen=True, slots=True)
class Weights:
    """A decoder's tensors; a tied model's ``lm_head`` is its ``token_embedding``."""

    token_embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    final_norm: Float32
    lm_head: PackedLinear

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the head as well."""
        return self.lm_head is self.token_embedding


def record_decoder(spec: DecoderSpec, weights: Weights) -> Program:
    """Record the forward pass: token ids in, logits of the wanted rows out."""
    p = Program()
    angles = p.rope_angles(spec.rope.dim, spec.rope.theta, spec.rope.factor)
    x = p.embed(weights.token_embedding, p.token_ids)  # [num_tokens, hidden_size]
    for layer, w in enumerate(weights.layers):
        h = p.rms_norm(x, w.attention_norm, spec.norm_eps)
        a = _attention(p, spec, w, layer, h, angles)
        x = p.add(x, p.linear(a, w.o_proj))
        h = p.rms_norm(x, w.mlp_norm, spec.norm_eps)
        x = p.add(x, p.linear(p.gated(spec.activation, p.linear(h, w.gate_up)), w.down_proj))
    # Rows first, then the norm: a row's norm depends on that row alone.
    rows = p.rms_norm(p.take(x, p.logit_rows), weights.final_norm, spec.norm_eps)
    return p.output(p.linear(rows, weights.lm_head))  # [num_logit_rows, vocab_size]


def _attention(
    p: Program, spec: DecoderSpec, w: LayerWeights, layer: int, h: Tensor, angles: Tensor
) -> Tensor:
    """[num_tokens, num_heads * head_dim] of one layer, before the output projection."""
    q, k, v = p.linear(h, w.qkv).split(spec.qkv_sizes)
    q = p.rope(q, angles, spec.num_heads, spec.head_dim, spec.rope.pairing)
    k = p.rope(k, angles, spec.num_kv_heads, spec.head_dim, spec.rope.pairing)
    return p.attention(
        q,
        k,
        v,
        layer=layer,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        scale=1.0 / math.sqrt(spec.head_dim),
    )
