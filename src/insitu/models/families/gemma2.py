"""Gemma 2: norms around both blocks, capped scores and logits, a window in every other layer.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    biases_of,
    cap_of,
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
from insitu.models.spec import LayerSpec, Multipliers

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("gemma2", "Gemma2ForCausalLM")
# A GGUF file does not say that its largest model scales scores by hidden_size / num_heads.
LAYERS_OF_LARGEST = 46
# Where a file is silent.
WINDOW, SCALAR, CAP, LOGIT_CAP = 4096, 256.0, 50.0, 30.0
NAMES = {
    "gguf": replace(
        GGUF_NAMES, post_attention_norm="post_attention_norm", post_mlp_norm="post_ffw_norm"
    ),
    "safetensors": replace(
        CONFIG_NAMES,
        post_attention_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        post_mlp_norm="post_feedforward_layernorm",
        norm_offset=1.0,
        is_tied=True,
    ),
}
TWINS = (Twin(*ARCHITECTURES, "gemma2", NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "gemma2")
    hidden_size = keys.integer("embedding_length", "hidden_size")
    num_layers = num_layers_of(keys)
    scalar_key = (None, "query_pre_attn_scalar")
    silent = None if keys.is_gguf or keys.is_null(*scalar_key) else SCALAR
    scalar = keys.number(*scalar_key, silent)
    if keys.is_gguf and num_layers == LAYERS_OF_LARGEST:
        scalar = hidden_size / keys.integer("attention.head_count", None)
    attention = attention_of(
        keys,
        scale=None if scalar is None else 1 / math.sqrt(scalar),
        soft_cap=cap_of(keys, "attn_logit_softcapping", CAP),
    )
    keys.tell("query_pre_attn_scalar", scalar or attention.head_dim)
    keys.must_be_off("use_bidirectional_attention")
    keys.ignore("attention_bias", "hidden_act")  # the second: hidden_activation holds
    rope = RopeReader(keys, asked_len)
    turned = rope.read(attention.head_dim, "halves")
    mlp = mlp_of(keys, activation="gelu", key="hidden_activation")
    windows = windows_of(keys, window_of(keys, WINDOW), [i % 2 == 0 for i in range(num_layers)])
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, mlp, window) for window in windows],
        norm=norm_of(keys),
        multipliers=Multipliers(
            embedding=math.sqrt(hidden_size),
            logit_soft_cap=cap_of(keys, "final_logit_softcapping", LOGIT_CAP),
        ),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
