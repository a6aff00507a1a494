"""Qwen2-type decoders: biases on query, key and value; rope over the two halves of a head.

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
    upper_windows_of,
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

ARCHITECTURES = ("qwen2", "Qwen2ForCausalLM")
TWINS = (Twin("qwen2", "Qwen2ForCausalLM", "qwen2", PLAIN_NAMES, {}),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "qwen2")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    windows = upper_windows_of(keys, num_layers_of(keys))
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
    names = PLAIN_NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias={"qkv"}).weights()
