"""Llama-type decoders (Llama, SmolLM2): no biases, rope over pairs that GGUF stores side by side.

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

ARCHITECTURES = ("llama", "LlamaForCausalLM")
# Both must be off: this decoder has no biases.
_BIAS_KEYS = ("attention_bias", "mlp_bias")


def spec_from(source: TensorSource) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    if source.format == "gguf":
        if "rope_freqs.weight" in source.tensors:
            raise refuse(source, "rope_freqs.weight", "rope frequency factors are not supported")
        # Converters permute q and k rows so that a pair's dims are neighbours.
        return gguf_spec(source, "llama", "adjacent")
    keys = source.metadata
    for key in _BIAS_KEYS:
        if keys.boolean(key, default=False):
            raise refuse(source, key, "biases are not supported in this family")
    if keys.has("sliding_window"):
        raise refuse(source, "sliding_window", "is not supported")
    return config_spec(source, "halves", {*_BIAS_KEYS, "rope_interleaved"})


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    return Placer(source, placement, spec).weights(has_qkv_bias=False)
