"""Qwen2-type decoders: biases on query, key and value; rope over the two halves of a head.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.models.config import config_spec, gguf_spec, refuse
from insitu.models.names import Placer

if TYPE_CHECKING:
    from insitu.models.decoder import Weights
    from insitu.models.spec import DecoderSpec
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("qwen2", "Qwen2ForCausalLM")


def spec_from(source: TensorSource) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    if source.format == "gguf":
        return gguf_spec(source, "qwen2", "halves")
    keys = source.metadata
    # sliding_window alone asks for nothing: it takes effect only when this is true.
    if keys.boolean("use_sliding_window", default=False):
        raise refuse(source, "use_sliding_window", "sliding windows are not supported")
    return config_spec(source, "halves")


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    return Placer(source, placement, spec).weights(has_qkv_bias=True)
