"""Qwen2-MoE and Qwen3-MoE: mixtures of experts, the first with an expert that every row goes
through, under a gate of its own. Some layers may be dense.

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
    upper_windows_of,
)
from insitu.models.keys import Keys
from insitu.models.names import (
    CONFIG_MOE,
    CONFIG_NAMES,
    GGUF_MOE,
    GGUF_NAMES,
    QK_NORM_NAMES,
    Twin,
)
from insitu.models.placer import Placer
from insitu.models.rope import RopeReader
from insitu.models.spec import LayerSpec, MlpSpec, MoeSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

QWEN2, QWEN3 = ("qwen2moe", "Qwen2MoeForCausalLM"), ("qwen3moe", "Qwen3MoeForCausalLM")
ARCHITECTURES = (*QWEN2, *QWEN3)
NAMES_OF_SECOND = {
    "gguf": replace(GGUF_NAMES, moe=replace(GGUF_MOE, shared_gate="ffn_gate_inp_shexp")),
    "safetensors": replace(
        CONFIG_NAMES, moe=replace(CONFIG_MOE, shared_gate="mlp.shared_expert_gate")
    ),
}
TWINS = (
    Twin(*QWEN2, "qwen2_moe", NAMES_OF_SECOND, {"qkv": "qkv_bias"}),
    Twin(*QWEN3, "qwen3_moe", QK_NORM_NAMES),
)


def _architecture(source: TensorSource) -> str:
    if source.format == "gguf":
        return source.metadata.string("general.architecture")
    return source.metadata.strings("architectures")[0]


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    is_second = _architecture(source) in QWEN2
    keys = Keys(source, (QWEN2 if is_second else QWEN3)[0])
    rope, attention = RopeReader(keys, asked_len), attention_of(keys)
    windows = upper_windows_of(keys, num_layers_of(keys))
    keys.ignore("attention_bias", "qkv_bias")
    turned = rope.read(attention.head_dim, "halves")
    return decoder_of(
        keys,
        attention=attention,
        layers=[
            LayerSpec(turned, mlp, window)
            for mlp, window in zip(_mlps(keys, is_second=is_second), windows, strict=True)
        ],
        norm=norm_of(keys),
        max_model_len=rope.max_model_len,
    )


def _mlps(keys: Keys, *, is_second: bool) -> list[MlpSpec | MoeSpec]:
    """Every ``decoder_sparse_step``-th layer is a mixture, but for those named as dense."""
    shared = None
    if is_second:
        size = keys.integer("expert_shared_feed_forward_length", "shared_expert_intermediate_size")
        shared = MlpSpec(size)
    # GGUF files of the third leave this out, and all of its models normalise.
    is_normalised = keys.boolean(
        "expert_weights_norm", "norm_topk_prob", default=keys.is_gguf and not is_second
    )
    mixture = moe_of(keys, size="moe_intermediate_size", is_normalised=is_normalised, shared=shared)
    num_layers = num_layers_of(keys)
    step = keys.integer(None, "decoder_sparse_step", 1)
    keys.ignore("mlp_only_layers")
    dense = [] if keys.is_gguf else keys.metadata.integers("mlp_only_layers", [])
    is_mixture = [i not in dense and (i + 1) % step == 0 for i in range(num_layers)]
    plain = mlp_of(keys)
    return [mixture if is_on else plain for is_on in is_mixture]


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    if _architecture(source) in QWEN3:
        names, with_bias = QK_NORM_NAMES[source.format], biases_of(source)
    else:
        names = NAMES_OF_SECOND[source.format]
        has_bias = source.format == "gguf" or source.metadata.boolean("qkv_bias", default=True)
        with_bias = {"qkv"} if has_bias else set()
    return Placer(source, placement, spec, names, with_bias=with_bias).weights()
