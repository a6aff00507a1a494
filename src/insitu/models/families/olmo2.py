"""OLMo 2: norms after both blocks and none before; queries and keys are normed over the whole row.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import attention_of, biases_of, decoder_of, mlp_of, norm_of, num_layers_of
from insitu.models.keys import Keys
from insitu.models.names import CONFIG_NAMES, GGUF_NAMES, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("olmo2", "Olmo2ForCausalLM")
NAMES = {
    "gguf": replace(
        GGUF_NAMES,
        attention_norm=None,
        mlp_norm=None,
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
        post_attention_norm="post_attention_norm",
        post_mlp_norm="post_ffw_norm",
    ),
    "safetensors": replace(
        CONFIG_NAMES,
        attention_norm=None,
        mlp_norm=None,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        post_attention_norm="post_attention_layernorm",
        post_mlp_norm="post_feedforward_layernorm",
    ),
}
TWINS = (Twin(*ARCHITECTURES, "olmo2", NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "olmo2")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    keys.ignore("attention_bias")
    layer = LayerSpec(rope.read(attention.head_dim, "halves"), mlp_of(keys))
    return decoder_of(
        keys,
        attention=attention,
        layers=[layer] * num_layers_of(keys),
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
