"""Mixtral: a Mistral whose rows go through two of eight experts (GGUF files call it llama).

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import (
    attention_of,
    decoder_of,
    mlp_of,
    moe_of,
    norm_of,
    num_layers_of,
    window_of,
    windows_of,
)
from insitu.models.keys import Keys
from insitu.models.names import CONFIG_NAMES, GGUF_NAMES, MoeNames, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("MixtralForCausalLM",)
THETA = 1e6
EXPERTS = MoeNames(
    router="block_sparse_moe.gate",
    gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    down_proj="block_sparse_moe.experts.{}.w2",
    is_stacked=False,
)
NAMES = {"gguf": GGUF_NAMES, "safetensors": replace(CONFIG_NAMES, moe=EXPERTS)}
TWINS = (Twin("llama", "MixtralForCausalLM", "mixtral", NAMES, {}),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "mixtral")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    windows = windows_of(keys, window_of(keys), [True] * num_layers_of(keys))
    mlp_of(keys)  # its activation is every expert's
    mlp = moe_of(keys, size="intermediate_size", is_normalised=True, count="num_local_experts")
    turned = rope.read(attention.head_dim, "halves", theta=THETA)
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
