"""A decoder's tensors, by what they do; what a decoder does without is None.

Not here: names in files (``names``) or numbers (``spec``).

Always true: query, key and value are one linear, as are gate and up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from insitu.kernels.pack import Experts, PackedLinear

    Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Norm:
    """Factors, and offsets where the kind of norm has them."""

    weight: Float32
    bias: Float32 | None = None


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Norms of query and key are as long as a head, or as the whole row."""

    qkv: PackedLinear
    o_proj: PackedLinear
    q_norm: Norm | None = None
    k_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """Gate and up are one linear; without a gate it is up alone."""

    gate_up: PackedLinear
    down_proj: PackedLinear


@dataclass(frozen=True, slots=True)
class MoeWeights:
    """A mixture of experts, with perhaps one that every row goes through, perhaps gated."""

    router: PackedLinear
    experts: Experts
    shared: MlpWeights | None = None
    shared_gate: PackedLinear | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Two blocks, each with a norm before it, after it, or both."""

    attention: AttentionWeights
    mlp: MlpWeights | MoeWeights
    attention_norm: Norm | None = None
    post_attention_norm: Norm | None = None
    mlp_norm: Norm | None = None
    post_mlp_norm: Norm | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A decoder's tensors; a tied model's ``lm_head`` is its ``token_embedding``."""

    token_embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    final_norm: Norm
    lm_head: PackedLinear
    position_embedding: PackedLinear | None = None

    @property
    def is_tied(self) -> bool:
        """Whether the embedding is the head as well."""
        return self.lm_head is self.token_embedding

    def linears(self) -> Iterator[tuple[str, PackedLinear]]:
        """Every distinct linear with the name of its group."""
        yield "token_embedding", self.token_embedding
        if self.position_embedding is not None:
            yield "position_embedding", self.position_embedding
        for layer in self.layers:
            yield "qkv", layer.attention.qkv
            yield "o_proj", layer.attention.o_proj
            yield from _mlp_linears(layer.mlp)
        if not self.is_tied:
            yield "lm_head", self.lm_head


def _mlp_linears(mlp: MlpWeights | MoeWeights) -> Iterator[tuple[str, PackedLinear]]:
    if isinstance(mlp, MlpWeights):
        yield "gate_up", mlp.gate_up
        yield "down_proj", mlp.down_proj
        return
    yield "router", mlp.router
    for gate_up, down in zip(mlp.experts.gate_up, mlp.experts.down, strict=True):
        yield "experts' gate_up", gate_up
        yield "experts' down_proj", down
    if mlp.shared is not None:
        yield from _mlp_linears(mlp.shared)
    if mlp.shared_gate is not None:
        yield "shared_gate", mlp.shared_gate
