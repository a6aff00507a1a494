"""OLMoE: a mixture of experts; queries and keys are normed over the whole row.

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
)
from insitu.models.keys import Keys
from insitu.models.names import QK_NORM_NAMES, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("olmoe", "OlmoeForCausalLM")
TWINS = (Twin(*ARCHITECTURES, "olmoe", QK_NORM_NAMES),)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    keys = Keys(source, "olmoe")
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    keys.ignore("attention_bias")
    mlp_of(keys)  # its activation is every expert's
    mlp = moe_of(
        keys,
        size="intermediate_size",
        is_normalised=keys.boolean("expert_weights_norm", "norm_topk_prob", default=False),
    )
    layer = LayerSpec(rope.read(attention.head_dim, "halves"), mlp)
    return decoder_of(
        keys,
        attention=attention,
        layers=[layer] * num_layers_of(keys),
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = QK_NORM_NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
