"""Phi-3 and Phi-4-mini: query, key and value in one tensor, gate and up in another; a part of a
head may turn.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    decoder_of,
    mlp_of,
    norm_of,
    num_layers_of,
    window_of,
    windows_of,
)
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

ARCHITECTURES = ("phi3", "Phi3ForCausalLM")
NAMES = {
    "gguf": replace(GGUF_NAMES, qkv=("attn_qkv",), gate_up=("ffn_up",)),
    "safetensors": replace(
        CONFIG_NAMES, qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",)
    ),
}
TWINS = (Twin(*ARCHITECTURES, "phi3", NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "phi3")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    windows = windows_of(keys, window_of(keys), [True] * num_layers_of(keys))
    keys.must_be_off("attention_bias", "lm_head_bias", "mlp_bias")
    keys.ignore("full_attn_mod")  # of its own code, which does not read it either
    turned, mlp = rope.read(attention.head_dim, "halves", rotary=1.0), mlp_of(keys)
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, mlp, window) for window in windows],
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    return Placer(source, placement, spec, NAMES[source.format]).weights()
