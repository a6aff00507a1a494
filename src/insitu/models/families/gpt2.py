"""GPT-2: learned positions instead of rope, norms around the mean, biases everywhere, no gates; a
checkpoint stores its linears transposed.

Not here: anything another family shares; that is driven by the spec.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.models.config import MAX_LAYERS, decoder_of
from insitu.models.keys import Keys
from insitu.models.names import GGUF_NAMES, TensorNames, Twin
from insitu.models.placer import Placer
from insitu.models.spec import AttentionSpec, LayerSpec, MlpSpec, NormSpec

if TYPE_CHECKING:
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.place import Placement
    from insitu.weights.source import TensorSource

ARCHITECTURES = ("gpt2", "GPT2LMHeadModel")
EPS = 1e-5
NAMES = {
    "gguf": replace(
        GGUF_NAMES, qkv=("attn_qkv",), gate_up=("ffn_up",), position_embedding="position_embd"
    ),
    "safetensors": TensorNames(
        token_embedding="transformer.wte",  # noqa: S106
        position_embedding="transformer.wpe",
        final_norm="transformer.ln_f",
        lm_head="lm_head",
        layer="transformer.h.{}.",
        attention_norm="ln_1",
        qkv=("attn.c_attn",),
        o_proj="attn.c_proj",
        mlp_norm="ln_2",
        gate_up=("mlp.c_fc",),
        down_proj="mlp.c_proj",
        is_transposed=True,
        is_tied=True,
    ),
}
TWINS = (Twin(*ARCHITECTURES, "gpt2", NAMES, {}),)
ALL = ("qkv", "o_proj", "gate_up", "down_proj")


def spec_from(source: TensorSource, asked_len: int | None) -> DecoderSpec:
    """Read the decoder's numbers, refusing what this family does not do."""
    del asked_len  # no rope
    keys = Keys(source, "gpt2")
    hidden_size = keys.integer("embedding_length", "n_embd")
    num_heads = keys.integer("attention.head_count", "n_head")
    head_dim, left = divmod(hidden_size, num_heads)
    if left:
        raise keys.refuse("n_head", f"{num_heads} does not divide {hidden_size}")
    keys.must_be_off("scale_attn_by_inverse_layer_idx", "add_cross_attention")
    keys.ignore("reorder_and_upcast_attn")
    if not keys.boolean(None, "scale_attn_weights", default=True):
        raise keys.refuse("scale_attn_weights", "false is not supported")
    activation = keys.string(None, "activation_function", "gelu_new")
    if activation not in {"gelu_new", "gelu_pytorch_tanh"}:
        raise keys.refuse("activation_function", f"{activation!r} is not supported")
    inner = keys.integer("feed_forward_length", "n_inner", 4 * hidden_size)
    eps = keys.number("attention.layer_norm_epsilon", "layer_norm_epsilon", EPS, least=1e-12)
    num_positions = keys.integer("context_length", "n_positions")
    layer = LayerSpec(None, MlpSpec(inner, "gelu", is_gated=False))
    return decoder_of(
        keys,
        hidden_size=hidden_size,
        attention=AttentionSpec(num_heads, num_heads, head_dim, float(head_dim) ** -0.5),
        layers=[layer] * keys.integer("block_count", "n_layer", most=MAX_LAYERS),
        norm=NormSpec("layer", eps),
        max_model_len=num_positions,
        num_positions=num_positions,
    )


def weights_from(source: TensorSource, placement: Placement, spec: DecoderSpec) -> Weights:
    """Place every tensor of the file."""
    names = NAMES[source.format]
    if "wte.weight" in source.tensors:  # as first published: no prefix, and masks beside weights
        prefix = "transformer."
        names = replace(
            names,
            token_embedding=names.token_embedding.removeprefix(prefix),
            position_embedding="wpe",
            final_norm=names.final_norm.removeprefix(prefix),
            layer=names.layer.removeprefix(prefix),
        )
        placement.skip(
            name for name in source.tensors if name.endswith((".attn.bias", ".attn.masked_bias"))
        )
    return Placer(source, placement, spec, names, with_bias=ALL).weights()
