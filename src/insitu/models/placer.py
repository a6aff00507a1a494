"""Place a decoder's tensors, by the names a family gives, in the shapes its spec demands.

Not here: names, or which family has what.

Always true: every linear placed here has the shape its spec demands; a kind of linear has biases in
every layer, or in none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.pack import Experts, PackedLinear
from insitu.models.keys import refuse
from insitu.models.spec import MlpSpec, MoeSpec
from insitu.models.weights import (
    AttentionWeights,
    LayerWeights,
    MlpWeights,
    MoeWeights,
    Norm,
    Weights,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from insitu.models.names import MoeNames, TensorNames
    from insitu.models.spec import DecoderSpec
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

# Factors of rope angles, which ``rope`` has read.
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


class Placer:
    """Place tensors of one file by name, checking every shape against the spec.

    ``with_bias``: which linears (qkv, o_proj, gate_up, down_proj) have biases; a GGUF file, which
    has no key for it, may have more, and its first layer shows which.
    """

    def __init__(
        self,
        source: TensorSource,
        placement: Placement,
        spec: DecoderSpec,
        names: TensorNames,
        *,
        with_bias: Collection[str] = (),
    ) -> None:
        self._source = source
        self._placement = placement
        self._spec = spec
        self._names = names
        self._with_bias = with_bias

    def weights(self) -> Weights:
        """Place every tensor of a decoder; a file with one more is refused."""
        spec, names, place = self._spec, self._names, self._placement
        embedding = place.linear(
            f"{names.token_embedding}.weight", n=[spec.vocab_size], k=spec.hidden_size
        )
        positions = None
        if names.position_embedding is not None and spec.num_positions is not None:
            name = f"{names.position_embedding}.weight"
            positions = place.linear(name, n=[spec.num_positions], k=spec.hidden_size)
        weights = Weights(
            token_embedding=embedding,
            layers=tuple(self._layer(i) for i in range(spec.num_layers)),
            final_norm=self._norm(names.final_norm, spec.hidden_size),
            lm_head=self._lm_head(embedding),
            position_embedding=positions,
        )
        for name in _ROPE_TENSORS:
            if place.has(name):
                place.vector(name, spec.ropes[0].dim // 2)
        place.finish()
        return weights

    def _layer(self, index: int) -> LayerWeights:
        names, hidden_size = self._names, self._spec.hidden_size
        prefix = names.layer.format(index)

        def norm(name: str | None) -> Norm | None:
            return None if name is None else self._norm(prefix + name, hidden_size)

        return LayerWeights(
            attention=self._attention(prefix),
            mlp=self._mlp(prefix, self._spec.layers[index].mlp),
            attention_norm=norm(names.attention_norm),
            post_attention_norm=norm(names.post_attention_norm),
            mlp_norm=norm(names.mlp_norm),
            post_mlp_norm=norm(names.post_mlp_norm),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        spec, names = self._spec, self._names
        sizes = list(spec.attention.qkv_sizes)
        q_size, kv_size, _ = sizes
        if len(names.qkv) == 1:
            sizes = [sum(sizes)]
        return AttentionWeights(
            qkv=self._linear("qkv", prefix, names.qkv, sizes, spec.hidden_size),
            o_proj=self._linear("o_proj", prefix, [names.o_proj], [spec.hidden_size], q_size),
            q_norm=self._head_norm(prefix, names.q_norm, q_size),
            k_norm=self._head_norm(prefix, names.k_norm, kv_size),
        )

    def _head_norm(self, prefix: str, name: str | None, row_size: int) -> Norm | None:
        """As long as a head, or as the whole row: the file says."""
        if name is None:
            return None
        info = self._source.tensors.get(f"{prefix}{name}.weight")
        is_row = info is not None and info.shape == (row_size,)
        return self._norm(prefix + name, row_size if is_row else self._spec.attention.head_dim)

    def _mlp(self, prefix: str, spec: MlpSpec | MoeSpec) -> MlpWeights | MoeWeights:
        names = self._names
        if isinstance(spec, MlpSpec):
            return self._dense(prefix, spec, names.gate_up, names.down_proj)
        assert names.moe is not None
        return self._moe(prefix, spec, names.moe)

    def _dense(
        self, prefix: str, spec: MlpSpec, gate_up: tuple[str, ...], down_proj: str
    ) -> MlpWeights:
        hidden_size = self._spec.hidden_size
        sizes = [spec.size] * (2 if spec.is_gated else 1)
        if len(gate_up) == 1:
            sizes = [sum(sizes)]
        return MlpWeights(
            gate_up=self._linear("gate_up", prefix, gate_up, sizes, hidden_size),
            down_proj=self._linear("down_proj", prefix, [down_proj], [hidden_size], spec.size),
        )

    def _moe(self, prefix: str, spec: MoeSpec, names: MoeNames) -> MoeWeights:
        hidden_size = self._spec.hidden_size
        router = self._linear("router", prefix, [names.router], [spec.num_experts], hidden_size)
        shared = None
        if spec.shared is not None:
            shared = self._dense(prefix, spec.shared, names.shared_gate_up, names.shared_down_proj)
        shared_gate = None
        if names.shared_gate is not None:
            shared_gate = self._placement.row(f"{prefix}{names.shared_gate}.weight", hidden_size)
        return MoeWeights(router, self._experts(prefix, spec, names), shared, shared_gate)

    def _experts(self, prefix: str, spec: MoeSpec, names: MoeNames) -> Experts:
        place, hidden_size, size = self._placement, self._spec.hidden_size, spec.expert.size
        gate_up = [f"{prefix}{name}.weight" for name in names.gate_up]
        down = f"{prefix}{names.down_proj}.weight"
        if names.is_stacked:
            halves = [size] * len(gate_up) if len(gate_up) == 2 else [2 * size]
            return Experts(
                place.stacked(*gate_up, count=spec.num_experts, n=halves, k=hidden_size, parts=2),
                place.stacked(down, count=spec.num_experts, n=[hidden_size], k=size),
            )
        indices = range(spec.num_experts)
        return Experts(
            tuple(
                place.linear(*(name.format(i) for name in gate_up), n=[size, size], k=hidden_size)
                for i in indices
            ),
            tuple(place.linear(down.format(i), n=[hidden_size], k=size) for i in indices),
        )

    def _norm(self, name: str, length: int) -> Norm:
        weight = self._placement.vector(f"{name}.weight", length)
        weight += np.float32(self._names.norm_offset)
        if self._spec.norm.kind == "rms":
            return Norm(weight)
        bias = f"{name}.bias"
        has_bias = self._placement.has(bias)
        offsets = self._placement.vector(bias, length) if has_bias else np.zeros_like(weight)
        return Norm(weight, offsets)

    def _lm_head(self, embedding: PackedLinear) -> PackedLinear:
        source, name = self._source, f"{self._names.lm_head}.weight"
        has_own = self._placement.has(name)
        # GGUF says tied by leaving the head out; config.json says it in a key.
        is_tied = not has_own
        if source.format != "gguf":
            is_tied = source.metadata.boolean("tie_word_embeddings", default=self._names.is_tied)
        if is_tied and not has_own:
            return embedding
        if is_tied and source.read(name) != source.read(embedding.segments[0].name):
            message = "differs from the token embedding, but tie_word_embeddings is true"
            raise refuse(source, name, message)
        spec = self._spec
        head = self._placement.linear(name, n=[spec.vocab_size], k=spec.hidden_size)
        return embedding if is_tied else head

    def _linear(
        self, role: str, prefix: str, names: Sequence[str], sizes: Sequence[int], k: int
    ) -> PackedLinear:
        """One segment a name, of ``sizes`` outputs over k inputs."""
        first = self._names.layer.format(0) + names[0]
        has_bias = role in self._with_bias
        if self._source.format == "gguf":
            has_bias = has_bias or self._placement.has(f"{first}.bias")
        biases = [f"{prefix}{name}.bias" for name in names] if has_bias else []
        weights = [f"{prefix}{name}.weight" for name in names]
        is_transposed = self._names.is_transposed
        return self._placement.linear(
            *weights, biases=biases, n=sizes, k=k, is_transposed=is_transposed
        )
