"""StableLM: norms around the mean, with offsets; a quarter of a head turns.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.models.config import attention_of, decoder_of, mlp_of, norm_of, num_layers_of
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

ARCHITECTURES = ("stablelm", "StableLmForCausalLM")
ROTARY = 0.25
TWINS = (Twin(*ARCHITECTURES, "stablelm", PLAIN_NAMES, {"qkv": "use_qkv_bias"}),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "stablelm")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    keys.must_be_off("qk_layernorm", "use_parallel_residual")
    keys.ignore("use_qkv_bias")
    # GGUF files say so of every model; where it holds, the second norm is missing, and missed.
    keys.boolean("use_parallel_residual", None, default=False)
    turned = rope.read(attention.head_dim, "halves", rotary=ROTARY)
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, mlp_of(keys))] * num_layers_of(keys),
        norm=norm_of(keys, "layer"),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    has_bias = source.format != "gguf" and source.metadata.boolean("use_qkv_bias", default=False)
    with_bias = {"qkv"} if has_bias else set()
    return Placer(
        source, placement, spec, PLAIN_NAMES[source.format], with_bias=with_bias
    ).weights()
