"""Llama-type decoders (Llama, SmolLM2): rope over pairs that GGUF stores side by side.

A GGUF file of this kind may hold a mixture of experts, or a Mistral with its window.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    biases_of,
    decoder_of,
    mlp_of,
    moe_of,
    norm_of,
    num_layers_of,
    window_of,
)
from insitu.models.keys import Keys
from insitu.models.names import PLAIN_NAMES, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("llama", "LlamaForCausalLM")
TWINS = (Twin("llama", "LlamaForCausalLM", "llama", PLAIN_NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "llama")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    window = 0
    if keys.is_gguf:
        window = window_of(keys)
    keys.ignore("attention_bias", "mlp_bias", "rope_interleaved")  # the first two: weights_from
    has_experts = keys.integer("expert_count", None, 0, least=0) > 0
    keys.has("feed_forward_length", None)  # of experts, unless they have a key of their own
    mlp = moe_of(keys, size="", is_normalised=True) if has_experts else mlp_of(keys)
    # Converters permute q and k rows so that a pair's dims are neighbours.
    turned = rope.read(attention.head_dim, "adjacent" if keys.is_gguf else "halves")
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, mlp, window)] * num_layers_of(keys),
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = PLAIN_NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
