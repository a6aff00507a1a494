"""Gemma 3 (text): norms around both blocks, normed queries and keys, and five layers of six that
see a window and turn by a theta of their own.

Not here: anything another family shares; that is driven by the spec. Images are another model.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    biases_of,
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
from insitu.models.spec import LayerSpec, Multipliers, RopeSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("gemma3", "Gemma3ForCausalLM")
PATTERN = 6  # the last of so many layers sees all positions
THETA, LOCAL_THETA = 1e6, 1e4
# Where a config.json is silent.
WINDOW, SCALAR = 4096, 256.0
# A GGUF file does not say that its largest model scales scores by hidden_size / num_heads.
LAYERS_OF_LARGEST = 62
NAMES = {
    "gguf": replace(
        GGUF_NAMES,
        q_norm="attn_q_norm",
        k_norm="attn_k_norm",
        post_attention_norm="post_attention_norm",
        post_mlp_norm="post_ffw_norm",
    ),
    "safetensors": replace(
        CONFIG_NAMES,
        q_norm="self_attn.q_norm",
        k_norm="self_attn.k_norm",
        post_attention_norm="post_attention_layernorm",
        mlp_norm="pre_feedforward_layernorm",
        post_mlp_norm="post_feedforward_layernorm",
        norm_offset=1.0,
        is_tied=True,
    ),
}
TWINS = (Twin(*ARCHITECTURES, "gemma3_text", NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "gemma3")
    num_layers = num_layers_of(keys)
    hidden_size = keys.integer("embedding_length", "hidden_size")
    scalar_key = (None, "query_pre_attn_scalar")
    silent = None if keys.is_gguf or keys.is_null(*scalar_key) else SCALAR
    scalar = keys.number(*scalar_key, silent)
    if keys.is_gguf and num_layers == LAYERS_OF_LARGEST:
        scalar = hidden_size / keys.integer("attention.head_count", None)
    scale = None if scalar is None else 1 / math.sqrt(scalar)
    attention = attention_of(keys, scale=scale)
    keys.tell("query_pre_attn_scalar", scalar or attention.head_dim)
    keys.must_be_off("use_bidirectional_attention")
    keys.ignore("attention_bias")
    rope = RopeReader(keys, asked_len)
    turned, local = _ropes(keys, rope, attention.head_dim)
    pattern = keys.integer(None, "sliding_window_pattern", PATTERN)
    pattern = keys.integer(None, "_sliding_window_pattern", pattern)
    where = [(index + 1) % pattern > 0 for index in range(num_layers)]
    mlp = mlp_of(keys, activation="gelu", key="hidden_activation")
    layers = [
        LayerSpec(local if window else turned, mlp, window)
        for window in windows_of(keys, window_of(keys, 0 if keys.is_gguf else WINDOW), where)
    ]
    return decoder_of(
        keys,
        attention=attention,
        layers=layers,
        norm=norm_of(keys),
        multipliers=Multipliers(
            embedding=math.sqrt(hidden_size),
            logit_soft_cap=keys.number(None, "final_logit_softcapping", 0.0),
        ),
        max_model_len=rope.max_model_len,
    )


def _ropes(keys: Keys, rope: RopeReader, head_dim: int) -> tuple[RopeSpec, RopeSpec]:
    """Of layers that see all, and of those with a window (which no scaling stretches)."""
    told = None if keys.is_gguf else keys.metadata.mapping("rope_parameters")
    kinds = None if told is None else told.mapping("full_attention")
    if told is not None and kinds is not None:
        keys.ignore("rope_parameters")
        whole = rope.read_mapping(kinds, head_dim, "halves", THETA)
        near = told.mapping("sliding_attention")
        if near is None:
            return whole, RopeSpec(LOCAL_THETA, head_dim, "halves")
        return whole, rope.read_mapping(near, head_dim, "halves", LOCAL_THETA)
    theta = keys.number("rope.freq_base_swa", "rope_local_base_freq", LOCAL_THETA)
    return rope.read(head_dim, "halves", theta=THETA), RopeSpec(theta, head_dim, "halves")


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
