"""Mistral: a Llama whose tokens attend to a window of positions (GGUF files call it llama).

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

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
from insitu.models.names import CONFIG_NAMES, PLAIN_NAMES, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("MistralForCausalLM",)
WINDOW = 4096  # where a config.json is silent
TWINS = (Twin("llama", "MistralForCausalLM", "mistral", PLAIN_NAMES, {}),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "mistral")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    windows = windows_of(keys, window_of(keys, WINDOW), [True] * num_layers_of(keys))
    turned, mlp = rope.read(attention.head_dim, "halves"), mlp_of(keys)
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, mlp, window) for window in windows],
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    return Placer(source, placement, spec, CONFIG_NAMES).weights()
