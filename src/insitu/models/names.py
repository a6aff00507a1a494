"""What a decoder's tensors are called in each file format, and how they are placed.

Not here: which family has biases or which rope pairing; families say so.

Always true: every linear placed here has the shape its spec demands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.models.config import refuse
from insitu.models.decoder import LayerWeights, Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.kernels.pack import PackedLinear
    from insitu.models.spec import DecoderSpec
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names without `.weight` or `.bias`; a layer's follow ``layer`` filled with its index."""

    token_embedding: str
    final_norm: str
    lm_head: str
    layer: str
    attention_norm: str
    qkv: tuple[str, str, str]
    o_proj: str
    mlp_norm: str
    gate_up: tuple[str, str]
    down_proj: str


GGUF_NAMES = TensorNames(
    token_embedding="token_embd",  # noqa: S106
    final_norm="output_norm",
    lm_head="output",
    layer="blk.{}.",
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    o_proj="attn_output",
    mlp_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down_proj="ffn_down",
)
CONFIG_NAMES = TensorNames(
    token_embedding="model.embed_tokens",  # noqa: S106
    final_norm="model.norm",
    lm_head="lm_head",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    o_proj="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down_proj="mlp.down_proj",
)


class Placer:
    """Place tensors of one file by name, checking every shape against the spec."""

    def __init__(self, source: TensorSource, placement: Placement, spec: DecoderSpec) -> None:
        self._source = source
        self._placement = placement
        self._spec = spec
        self._names = GGUF_NAMES if source.format == "gguf" else CONFIG_NAMES

    def weights(self, *, has_qkv_bias: bool) -> Weights:
        """Place every tensor of a decoder; a file with one more is refused by ``finish``."""
        spec, names = self._spec, self._names
        embedding = self._linear([names.token_embedding], [spec.vocab_size], spec.hidden_size)
        layers = tuple(self._layer(i, has_qkv_bias=has_qkv_bias) for i in range(spec.num_layers))
        weights = Weights(
            token_embedding=embedding,
            layers=layers,
            final_norm=self._placement.vector(f"{names.final_norm}.weight", spec.hidden_size),
            lm_head=self._lm_head(embedding),
        )
        self._placement.finish()
        return weights

    def _layer(self, layer: int, *, has_qkv_bias: bool) -> LayerWeights:
        spec, names, place = self._spec, self._names, self._placement
        prefix = names.layer.format(layer)
        qkv = [prefix + name for name in names.qkv]
        gate_up = [prefix + name for name in names.gate_up]
        hidden_size, up_size = spec.hidden_size, spec.intermediate_size
        return LayerWeights(
            attention_norm=place.vector(f"{prefix}{names.attention_norm}.weight", hidden_size),
            qkv=self._linear(qkv, spec.qkv_sizes, hidden_size, has_bias=has_qkv_bias),
            o_proj=self._linear([prefix + names.o_proj], [hidden_size], spec.qkv_sizes[0]),
            mlp_norm=place.vector(f"{prefix}{names.mlp_norm}.weight", hidden_size),
            gate_up=self._linear(gate_up, [up_size, up_size], hidden_size),
            down_proj=self._linear([prefix + names.down_proj], [hidden_size], up_size),
        )

    def _lm_head(self, embedding: PackedLinear) -> PackedLinear:
        source, name = self._source, f"{self._names.lm_head}.weight"
        has_own = self._placement.has(name)
        # GGUF says tied by leaving the head out; config.json says it in a key.
        is_tied = not has_own
        if source.format != "gguf":
            is_tied = source.metadata.boolean("tie_word_embeddings", default=False)
        if is_tied and not has_own:
            return embedding
        if is_tied and source.read(name) != source.read(embedding.segments[0].name):
            message = "differs from the token embedding, but tie_word_embeddings is true"
            raise refuse(source, name, message)
        spec = self._spec
        head = self._linear([self._names.lm_head], [spec.vocab_size], spec.hidden_size)
        return embedding if is_tied else head

    def _linear(
        self, names: Sequence[str], sizes: Sequence[int], k: int, *, has_bias: bool = False
    ) -> PackedLinear:
        """One segment a name, of ``sizes`` outputs over k inputs."""
        biases = [f"{name}.bias" for name in names] if has_bias else []
        weights = (f"{name}.weight" for name in names)
        return self._placement.linear(*weights, biases=biases, n=sizes, k=k)
