"""What a decoder's tensors are called in each file format.

Not here: placing them (``placer``), or what a family calls differently (its own file).

Always true: a name of None is a tensor that the decoder does without.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from insitu.models.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class MoeNames:
    """A mixture's tensors, in a layer. Stacked, all experts are in one tensor; else ``{}`` in a
    name is the expert's index. One name of gate and up: a tensor that holds both, gate first."""

    router: str
    gate_up: tuple[str, ...]
    down_proj: str
    is_stacked: bool
    shared_gate_up: tuple[str, ...] = ()
    shared_down_proj: str = ""
    shared_gate: str | None = None


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Names without `.weight` or `.bias`; a layer's follow ``layer`` filled with its index.

    One name of query, key and value, or of gate and up, is a tensor that holds them all, in order.
    The last three fields are how a family stores what it names.
    """

    token_embedding: str
    final_norm: str
    lm_head: str
    layer: str
    attention_norm: str | None
    qkv: tuple[str, ...]
    o_proj: str
    mlp_norm: str | None
    gate_up: tuple[str, ...]
    down_proj: str
    q_norm: str | None = None
    k_norm: str | None = None
    post_attention_norm: str | None = None
    post_mlp_norm: str | None = None
    position_embedding: str | None = None
    moe: MoeNames | None = None
    norm_offset: float = 0.0  # added to the factors of every norm
    is_transposed: bool = False  # linears of layers are stored [k, n]
    is_tied: bool = False  # the head is the embedding, where a config.json does not say


GGUF_MOE = MoeNames(
    router="ffn_gate_inp",
    gate_up=("ffn_gate_exps", "ffn_up_exps"),
    down_proj="ffn_down_exps",
    is_stacked=True,
    shared_gate_up=("ffn_gate_shexp", "ffn_up_shexp"),
    shared_down_proj="ffn_down_shexp",
)
CONFIG_MOE = MoeNames(
    router="mlp.gate",
    gate_up=("mlp.experts.{}.gate_proj", "mlp.experts.{}.up_proj"),
    down_proj="mlp.experts.{}.down_proj",
    is_stacked=False,
    shared_gate_up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared_down_proj="mlp.shared_expert.down_proj",
)
GGUF_NAMES = TensorNames(
    token_embedding="token_embd",  # noqa: S106
    final_norm="output_norm",
    lm_head="output",
    layer="blk.{}.",
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    o_proj="attn_output",
    mlp_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down_proj="ffn_down",
    moe=GGUF_MOE,
)
CONFIG_NAMES = TensorNames(
    token_embedding="model.embed_tokens",  # noqa: S106
    final_norm="model.norm",
    lm_head="lm_head",
    layer="model.layers.{}.",
    attention_norm="input_layernorm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    o_proj="self_attn.o_proj",
    mlp_norm="post_attention_layernorm",
    gate_up=("mlp.gate_proj", "mlp.up_proj"),
    down_proj="mlp.down_proj",
    moe=CONFIG_MOE,
)
# By format, of families that put norms on queries and keys.
QK_NORM_NAMES = {
    "gguf": replace(GGUF_NAMES, q_norm="attn_q_norm", k_norm="attn_k_norm"),
    "safetensors": replace(CONFIG_NAMES, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
}
PLAIN_NAMES = {"gguf": GGUF_NAMES, "safetensors": CONFIG_NAMES}


@dataclass(frozen=True, slots=True)
class Twin:
    """An architecture as both formats know it: what each calls it, and its tensors."""

    gguf: str  # general.architecture
    config: str  # architectures of a config.json
    model_type: str
    names: Mapping[str, TensorNames]  # by format
    # Kinds of linears -> the key with which a config.json says that they have biases.
    biases: Mapping[str, str] = field(
        default_factory=lambda: {"qkv": "attention_bias", "gate_up": "mlp_bias"}
    )
    # Whether it can be such a model, where the numbers alone would not say.
    fits: Callable[[DecoderSpec], bool] = lambda _: True
