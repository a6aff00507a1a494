"""Granite: a Llama with factors on its embedding, scores, blocks and logits; and its mixtures of
experts, with perhaps one expert that every row goes through.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
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
from insitu.models.names import CONFIG_NAMES, GGUF_NAMES, MoeNames, Twin
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec, MlpSpec, MoeSpec, Multipliers

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource


def _is_unshared(spec: DecoderSpec) -> bool:
    return all(isinstance(one.mlp, MoeSpec) and one.mlp.shared is None for one in spec.layers)


ARCHITECTURES = (
    *("granite", "GraniteForCausalLM"),
    *("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
)
EXPERTS = MoeNames(
    router="block_sparse_moe.router.layer",
    gate_up=("block_sparse_moe.input_linear",),
    down_proj="block_sparse_moe.output_linear",
    is_stacked=True,
    shared_gate_up=("shared_mlp.input_linear",),
    shared_down_proj="shared_mlp.output_linear",
)
NAMES = {"gguf": GGUF_NAMES, "safetensors": replace(CONFIG_NAMES, moe=EXPERTS)}
TWINS = (
    Twin("granite", "GraniteForCausalLM", "granite", NAMES),
    Twin("granitemoe", "GraniteMoeForCausalLM", "granitemoe", NAMES, fits=_is_unshared),
    Twin("granitemoe", "GraniteMoeSharedForCausalLM", "granitemoeshared", NAMES),
)


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    name = source.metadata.string("general.architecture", "") if source.format == "gguf" else ""
    keys = Keys(source, name)
    scale = keys.number("attention.scale", "attention_multiplier", None)
    if scale is None and not keys.is_gguf:
        scale = 1.0
    attention = attention_of(keys, scale=scale)
    keys.ignore("attention_bias", "mlp_bias")
    rope = RopeReader(keys, asked_len)
    # GGUF converters permute q and k rows so that a pair's dims are neighbours.
    turned = rope.read(attention.head_dim, "adjacent" if keys.is_gguf else "halves")
    if not keys.boolean("rope.scaling.finetuned", None, default=True):
        raise keys.refuse(f"{name}.rope.scaling.finetuned", "false is not supported")
    logit_scale = keys.number("logit_scale", "logits_scaling", 1.0)
    return decoder_of(
        keys,
        attention=attention,
        layers=[LayerSpec(turned, _mlp(keys))] * num_layers_of(keys),
        norm=norm_of(keys),
        multipliers=Multipliers(
            embedding=keys.number("embedding_scale", "embedding_multiplier", 1.0),
            residual=keys.number("residual_scale", "residual_multiplier", 1.0),
            logits=1 / logit_scale,
        ),
        max_model_len=rope.max_model_len,
    )


def _mlp(keys: Keys) -> MlpSpec | MoeSpec:
    if not keys.integer("expert_count", "num_local_experts", 0, least=0):
        return mlp_of(keys)
    size = keys.integer("expert_shared_feed_forward_length", "shared_intermediate_size", 0, least=0)
    shared = MlpSpec(size) if size else None
    mlp_of(keys)  # its activation is every expert's
    return moe_of(
        keys,
        size="intermediate_size",
        is_normalised=True,
        shared=shared,
        count="num_local_experts",
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    return Placer(source, placement, spec, names, with_bias=biases_of(source)).weights()
