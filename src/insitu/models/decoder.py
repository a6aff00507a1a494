"""Record a decoder's forward pass: token ids in, logits or pooled rows of the wanted rows out.

Not here: anything one family does differently, or files. Families fill ``DecoderSpec`` and
``Weights``; whether a norm or a bias is there is read off the weights.

Always true: the recorded Program is the float definition; passes quantise and fuse it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.program import Program
from insitu.models.spec import MlpSpec, MoeSpec
from insitu.models.weights import MlpWeights, MoeWeights

if TYPE_CHECKING:
    from insitu.kernels.program import Tensor
    from insitu.models.spec import DecoderSpec, RopeSpec
    from insitu.models.weights import AttentionWeights, Norm, Weights

    Angles = dict[RopeSpec, Tensor]


def record_decoder(spec: DecoderSpec, weights: Weights) -> Program:
    """Record the forward pass: token ids in, logits or pooled rows of the wanted rows out.

    A pooled row is what the head would have read, in unit length.
    """
    p = Program()
    angles = {
        rope: p.rope_angles(rope.dim, rope.theta, rope.divisors, rope.magnitude)
        for rope in spec.ropes
    }
    x = _embedded(p, spec, weights)  # [num_tokens, hidden_size]
    for index, (layer, w) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        h = _normed(p, spec, x, w.attention_norm)
        h = _attention(p, spec, index, w.attention, h, angles)
        x = _joined(p, spec, x, _normed(p, spec, h, w.post_attention_norm))
        h = _normed(p, spec, x, w.mlp_norm)
        h = _mixed(p, layer.mlp, w.mlp, h)
        x = _joined(p, spec, x, _normed(p, spec, h, w.post_mlp_norm))
    # Rows first, then the norm: a row's norm depends on that row alone.
    pooled = _unit(p, _normed(p, spec, p.take(x, p.pooled_rows), weights.final_norm))
    rows = _normed(p, spec, p.take(x, p.logit_rows), weights.final_norm)
    return p.output(_logits(p, spec, p.linear(rows, weights.lm_head)), pooled)


def _embedded(p: Program, spec: DecoderSpec, weights: Weights) -> Tensor:
    x = p.embed(weights.token_embedding, p.token_ids)
    if weights.position_embedding is not None:
        x = p.add(x, p.embed(weights.position_embedding, p.positions))
    factor = spec.multipliers.embedding
    return x if factor == 1 else p.scale(x, factor)


def _normed(p: Program, spec: DecoderSpec, x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    if spec.norm.kind == "rms":
        return p.rms_norm(x, norm.weight, spec.norm.eps)
    assert norm.bias is not None
    return p.layer_norm(x, norm.weight, norm.bias, spec.norm.eps)


def _unit(p: Program, x: Tensor) -> Tensor:
    """Rows divided by their length; only rows of zeros keep theirs."""
    weight = np.full(x.width, x.width**-0.5, np.float32)
    return p.rms_norm(x, weight, float(np.finfo(np.float32).tiny))


def _joined(p: Program, spec: DecoderSpec, x: Tensor, added: Tensor) -> Tensor:
    factor = spec.multipliers.residual
    return p.add(x, added if factor == 1 else p.scale(added, factor))


def _attention(
    p: Program, spec: DecoderSpec, index: int, w: AttentionWeights, h: Tensor, angles: Angles
) -> Tensor:
    """[num_tokens, hidden_size] of one layer."""
    a, layer = spec.attention, spec.layers[index]
    q, k, v = p.linear(h, w.qkv).split(a.qkv_sizes)
    q, k = _normed(p, spec, q, w.q_norm), _normed(p, spec, k, w.k_norm)
    if layer.rope is not None:
        q = p.rope(q, angles[layer.rope], a.num_heads, a.head_dim, layer.rope.pairing)
        k = p.rope(k, angles[layer.rope], a.num_kv_heads, a.head_dim, layer.rope.pairing)
    out = p.attention(
        q,
        k,
        v,
        layer=index,
        num_heads=a.num_heads,
        num_kv_heads=a.num_kv_heads,
        head_dim=a.head_dim,
        scale=a.scale,
        window=layer.window,
        soft_cap=a.soft_cap,
    )
    return p.linear(out, w.o_proj)


def _mixed(p: Program, spec: MlpSpec | MoeSpec, w: MlpWeights | MoeWeights, h: Tensor) -> Tensor:
    """What a layer's second block makes of its rows."""
    if isinstance(spec, MlpSpec):
        assert isinstance(w, MlpWeights)
        return _mlp(p, spec, w, h)
    assert isinstance(w, MoeWeights)
    routing = p.route(p.linear(h, w.router), spec.num_active, is_normalised=spec.is_normalised)
    mixed = p.experts(spec.expert.activation, h, routing, w.experts, spec.num_active)
    if spec.shared is None or w.shared is None:
        return mixed
    shared = _mlp(p, spec.shared, w.shared, h)
    if w.shared_gate is not None:
        shared = p.gate_rows(shared, p.linear(h, w.shared_gate))
    return p.add(mixed, shared)


def _mlp(p: Program, spec: MlpSpec, w: MlpWeights, h: Tensor) -> Tensor:
    inner = p.linear(h, w.gate_up)
    act = p.gated if spec.is_gated else p.activate
    return p.linear(act(spec.activation, inner), w.down_proj)


def _logits(p: Program, spec: DecoderSpec, logits: Tensor) -> Tensor:
    """[num_logit_rows, vocab_size]."""
    m = spec.multipliers
    if m.logits != 1:
        logits = p.scale(logits, m.logits)
    return p.soft_cap(logits, m.logit_soft_cap) if m.logit_soft_cap else logits
