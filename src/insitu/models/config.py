"""The parts of a decoder's spec that most families read alike.

Not here: single keys (``keys``), rope (``rope``), or what one family does differently.

Always true: sizes that contradict each other, or a tensor, are refused with the key's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.kernels.ops import MAX_EXPERTS
from insitu.models.keys import MAX_MODEL_LEN, MAX_SIZE, Keys
from insitu.models.spec import (
    AttentionSpec,
    DecoderSpec,
    LayerSpec,
    MlpSpec,
    MoeSpec,
    Multipliers,
    NormSpec,
    SpecError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.models.spec import NormKind
    from insitu.weights.source import TensorSource

MAX_LAYERS = 1024
SOFTMAX = 1  # of GGUF's ways to weigh experts
EXPERT_COUNTS = ("num_experts", "num_local_experts")
# What families call the token embedding in a checkpoint.
EMBEDDINGS = ("model.embed_tokens.weight", "wte.weight", "transformer.wte.weight")
# By the word in a config.json.
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu"}


def attention_of(keys: Keys, *, scale: float | None = None, soft_cap: float = 0.0) -> AttentionSpec:
    """Heads, their dims, and 1 / sqrt(head_dim) as the scale unless told otherwise."""
    hidden_size = keys.integer("embedding_length", "hidden_size")
    num_heads = keys.integer("attention.head_count", "num_attention_heads")
    if keys.has("attention.key_length", "head_dim") or hidden_size % num_heads:
        head_dim = keys.integer("attention.key_length", "head_dim")
    else:
        head_dim = hidden_size // num_heads
    value_dim = keys.integer("attention.value_length", None, head_dim)
    if value_dim != head_dim:
        where = keys.key("attention.value_length", None)
        message = f"{value_dim} differs from the key length {head_dim}: not supported"
        raise keys.refuse(where, message)
    num_kv_heads = keys.integer("attention.head_count_kv", "num_key_value_heads", num_heads)
    return AttentionSpec(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=float(head_dim) ** -0.5 if scale is None else scale,
        soft_cap=soft_cap,
    )


def mlp_of(keys: Keys, *, activation: str = "silu", key: str = "hidden_act") -> MlpSpec:
    """A gated block of this activation, which a config.json may name in words of its own."""
    word = next(word for word, meant in ACTIVATIONS.items() if meant == activation)
    wanted = keys.string(None, key, word)
    if ACTIVATIONS.get(wanted, wanted) != activation:
        raise keys.refuse(key, f"{wanted!r} is not supported (only {activation!r})")
    return MlpSpec(keys.integer("feed_forward_length", "intermediate_size"), activation)


def moe_of(
    keys: Keys,
    *,
    size: str,
    is_normalised: bool,
    shared: MlpSpec | None = None,
    count: str = EXPERT_COUNTS[0],
) -> MoeSpec:
    """A mixture of experts, whose inner size a config.json calls ``size``, their number ``count``
    (some by the other name)."""
    gating = keys.integer("expert_gating_func", None, SOFTMAX, least=0)
    if gating != SOFTMAX:
        where = keys.key("expert_gating_func", None)
        raise keys.refuse(where, f"{gating} is not supported, only softmax ({SOFTMAX})")
    count = next((key for key in EXPERT_COUNTS if keys.has(None, key)), count)
    own_size = "expert_feed_forward_length"
    if keys.is_gguf and not keys.has(own_size, None):
        own_size = "feed_forward_length"
    return MoeSpec(
        expert=MlpSpec(keys.integer(own_size, size)),
        num_experts=keys.integer("expert_count", count, most=MAX_EXPERTS),
        num_active=keys.integer("expert_used_count", "num_experts_per_tok", most=MAX_EXPERTS),
        is_normalised=is_normalised,
        shared=shared,
    )


def biases_of(source: TensorSource) -> set[str]:
    """Which linears a config.json gives biases to."""
    if source.format == "gguf":
        return set()
    has, biases = source.metadata.boolean, set()
    if has("attention_bias", default=False):
        biases |= {"qkv", "o_proj"}
    if has("mlp_bias", default=False):
        biases |= {"gate_up", "down_proj"}
    return biases


def num_layers_of(keys: Keys) -> int:
    """How many layers."""
    return keys.integer("block_count", "num_hidden_layers", most=MAX_LAYERS)


def norm_of(keys: Keys, kind: NormKind = "rms") -> NormSpec:
    """The kind of norm and its epsilon."""
    names = {
        "rms": ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        "layer": ("attention.layer_norm_epsilon", "layer_norm_eps"),
    }[kind]
    return NormSpec(kind, keys.number(*names, least=1e-12, most=1.0))


def window_of(keys: Keys, default: int = 0) -> int:
    """The window that some layers have, the family's own where a file is silent; 0: none."""
    names = "attention.sliding_window", "sliding_window"
    default = 0 if keys.is_null(*names) else default
    return keys.integer(*names, default, least=0, most=MAX_MODEL_LEN)


def cap_of(keys: Keys, name: str, default: float) -> float:
    """A cap by its name in both formats, the family's own where a file is silent; 0: none."""
    default = 0.0 if keys.is_null(name, name) else default
    return keys.number(name, name, default, least=0.0)


def windows_of(keys: Keys, window: int, has_window: Sequence[bool]) -> tuple[int, ...]:
    """Each layer's window: as layer_types says, or else where the family has them."""
    keys.ignore("layer_types")
    kinds = [] if keys.is_gguf else keys.metadata.strings("layer_types", [])
    if kinds:
        if len(kinds) != len(has_window):
            raise keys.refuse("layer_types", f"names {len(kinds)} of {len(has_window)} layers")
        unknown = set(kinds) - {"full_attention", "sliding_attention"}
        if unknown:
            raise keys.refuse("layer_types", f"{min(unknown)!r} is not supported")
        has_window = [kind == "sliding_attention" for kind in kinds]
    if any(has_window) and not window and kinds:
        raise keys.refuse("sliding_window", "is missing, but layer_types asks for it")
    return tuple(window if has else 0 for has in has_window)


def upper_windows_of(keys: Keys, num_layers: int) -> tuple[int, ...]:
    """Windows that are used only if a config.json says so, from ``max_window_layers`` up."""
    window = window_of(keys)
    if not keys.is_gguf and not keys.boolean(None, "use_sliding_window", default=False):
        window = 0
    first = keys.integer(None, "max_window_layers", 28, least=0)
    has_window = [bool(window) and index >= first for index in range(num_layers)]
    if not window:
        keys.ignore("layer_types")
        return (0,) * num_layers
    return windows_of(keys, window, has_window)


def decoder_of(  # noqa: PLR0913
    keys: Keys,
    *,
    attention: AttentionSpec,
    layers: Sequence[LayerSpec],
    norm: NormSpec,
    multipliers: Multipliers | None = None,
    max_model_len: int,
    hidden_size: int | None = None,
    num_positions: int | None = None,
) -> DecoderSpec:
    """The whole; keys that nobody read are refused here."""
    if hidden_size is None:
        hidden_size = keys.integer("embedding_length", "hidden_size")
    # A head that is stored, or tied: names says how.
    keys.ignore("tie_word_embeddings")
    vocab_size = _vocab_size(keys)
    keys.finish()
    try:
        return DecoderSpec(
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            norm=norm,
            attention=attention,
            layers=tuple(layers),
            multipliers=multipliers or Multipliers(),
            num_positions=num_positions,
        )
    except SpecError as error:
        raise keys.refuse(error.field, error.message) from None


def _vocab_size(keys: Keys) -> int:
    """Rows of the embedding, which the key must agree with where it is given."""
    names = ("token_embd.weight",) if keys.is_gguf else EMBEDDINGS
    embedding = next((name for name in names if name in keys.source.tensors), names[0])
    info = keys.source.tensors.get(embedding)
    if info is None:
        raise keys.refuse(embedding, "the tensor is missing")
    if len(info.shape) != 2:
        raise keys.refuse(embedding, f"has shape {tuple(info.shape)}, not two dimensions")
    num_rows = info.shape[0]
    told = keys.integer("vocab_size", "vocab_size", num_rows, most=MAX_SIZE)
    if told != num_rows:
        where = keys.key("vocab_size", "vocab_size")
        raise keys.refuse(where, f"is {told}, but {embedding} has {num_rows} rows")
    return num_rows
