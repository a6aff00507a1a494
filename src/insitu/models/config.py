"""Read a decoder's numbers from a file's metadata, refusing what is not implemented by name.

Not here: which metadata a family uses or how its rope pairs dims; families pass that in. GGUF keys
carry the architecture as a prefix; config.json keys are the ones Hugging Face writes.

Always true: a key that would change the arithmetic is read, or its value is neutral, or the load is
refused with the key's name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from insitu.models.spec import DecoderSpec, RopeSpec, SpecError
from insitu.weights.errors import ModelFileError

if TYPE_CHECKING:
    from collections.abc import Collection

    from insitu.weights.metadata import Metadata
    from insitu.weights.source import TensorSource

    Pairing = Literal["adjacent", "halves"]

MAX_SIZE = 1 << 24
MAX_LAYERS = 1024
MAX_MODEL_LEN = 1 << 24
DEFAULT_THETA = 10000.0

# Keys of `<architecture>.*` that are read below or say nothing about the arithmetic.
_GGUF_KEYS = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
}
_CONFIG_KEYS = {
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
    "hidden_act",
    "tie_word_embeddings",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    # Training only, or how to load: no influence on a forward pass.
    "attention_dropout",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "hidden_dropout",
    "initializer_range",
    "layer_norm_eps",
    "max_window_layers",  # asks for nothing while no window is in use
    "sliding_window",  # judged by each family
    "use_sliding_window",
    "layer_types",
    "pretraining_tp",
    "output_attentions",
    "output_hidden_states",
}
# A key that looks like one of these changes the arithmetic: unknown ones are refused.
_MEANINGFUL = re.compile(
    "rope|rotary|attn|attention|expert|moe|router|window|sliding|softcap|scal|multiplier|bias"
    "|norm|mlp|quant|layer|head|hidden|residual|parallel|clip"
)
_ROPE_KEYS = {"type", "rope_type", "factor", "rope_theta"}


def refuse(source: TensorSource, where: str, message: str) -> ModelFileError:
    """An error that names the file and the key or tensor at fault."""
    return ModelFileError(source.path, where, message)


def gguf_spec(source: TensorSource, architecture: str, pairing: Pairing) -> DecoderSpec:
    """Numbers under `<architecture>.` of a GGUF file."""
    keys, prefix = source.metadata, f"{architecture}."
    _refuse_unknown_gguf(source, prefix)
    hidden_size = _size(keys, f"{prefix}embedding_length")
    num_heads = _size(keys, f"{prefix}attention.head_count")
    head_dim = _size(keys, f"{prefix}attention.key_length", _head_dim(hidden_size, num_heads))
    value_dim = _size(keys, f"{prefix}attention.value_length", head_dim)
    if value_dim != head_dim:
        message = f"{value_dim} differs from the key length {head_dim}: not supported"
        raise refuse(source, f"{prefix}attention.value_length", message)
    rope = RopeSpec(
        keys.number(f"{prefix}rope.freq_base", default=DEFAULT_THETA, minimum=1e-6, maximum=1e30),
        _size(keys, f"{prefix}rope.dimension_count", head_dim),
        pairing,
        _gguf_rope_factor(source, prefix),
    )
    return _build(
        source,
        hidden_size=hidden_size,
        intermediate_size=_size(keys, f"{prefix}feed_forward_length"),
        num_layers=keys.integer(f"{prefix}block_count", minimum=1, maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=_size(keys, f"{prefix}attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(source, "token_embd.weight", f"{prefix}vocab_size"),
        norm_eps=_eps(keys, f"{prefix}attention.layer_norm_rms_epsilon"),
        rope=rope,
        max_model_len=_model_len(keys, f"{prefix}context_length"),
    )


def config_spec(
    source: TensorSource, pairing: Pairing, extra_keys: Collection[str] = ()
) -> DecoderSpec:
    """Numbers of a config.json; the family has judged ``extra_keys`` itself."""
    keys = source.metadata
    _refuse_unknown_config(source, extra_keys)
    hidden_size, num_heads = _size(keys, "hidden_size"), _size(keys, "num_attention_heads")
    head_dim = _size(keys, "head_dim", _head_dim(hidden_size, num_heads))
    theta, factor = _config_rope(source)
    activation = keys.string("hidden_act", default="silu")
    if activation != "silu":
        raise refuse(source, "hidden_act", f"{activation!r} is not supported (only 'silu')")
    return _build(
        source,
        hidden_size=hidden_size,
        intermediate_size=_size(keys, "intermediate_size"),
        num_layers=keys.integer("num_hidden_layers", minimum=1, maximum=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=_size(keys, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(source, "model.embed_tokens.weight", "vocab_size"),
        norm_eps=_eps(keys, "rms_norm_eps"),
        rope=RopeSpec(theta, head_dim, pairing, factor),
        max_model_len=_model_len(keys, "max_position_embeddings"),
    )


def _build(source: TensorSource, **sizes: object) -> DecoderSpec:
    try:
        return DecoderSpec(**sizes)  # type: ignore[arg-type]
    except SpecError as error:
        raise refuse(source, error.field, error.message) from None


def _size(keys: Metadata, key: str, default: int | None = None) -> int:
    if default is None:
        return keys.integer(key, minimum=1, maximum=MAX_SIZE)
    return keys.integer(key, default=default, minimum=1, maximum=MAX_SIZE)


def _head_dim(hidden_size: int, num_heads: int) -> int | None:
    """What a head's dims are unless the file says; None where the file has to."""
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _eps(keys: Metadata, key: str) -> float:
    return keys.number(key, minimum=1e-12, maximum=1.0)


def _model_len(keys: Metadata, key: str) -> int:
    return keys.integer(key, minimum=1, maximum=MAX_MODEL_LEN)


def _vocab_size(source: TensorSource, embedding: str, key: str) -> int:
    """Rows of the embedding, which the key must agree with where it is given."""
    info = source.tensors.get(embedding)
    if info is None:
        raise refuse(source, embedding, "the tensor is missing")
    if len(info.shape) != 2:
        raise refuse(source, embedding, f"has shape {tuple(info.shape)}, not two dimensions")
    num_rows = info.shape[0]
    told = source.metadata.integer(key, default=num_rows, minimum=1, maximum=MAX_SIZE)
    if told != num_rows:
        raise refuse(source, key, f"is {told}, but {embedding} has {num_rows} rows")
    return num_rows


def _refuse_unknown_gguf(source: TensorSource, prefix: str) -> None:
    for key in source.metadata.keys():  # noqa: SIM118
        name = key.removeprefix(prefix)
        if name == key or name in _GGUF_KEYS:
            continue
        if name.startswith(("expert_", "attention.sliding_window")) and not (
            source.metadata.integer(key, minimum=0, maximum=MAX_MODEL_LEN)
        ):
            continue  # a count or window of zero asks for nothing
        raise refuse(source, key, "is not supported")


def _gguf_rope_factor(source: TensorSource, prefix: str) -> float:
    keys = source.metadata
    key = f"{prefix}rope.scaling.type"
    kind = keys.string(key, default="none")
    if kind not in ("none", "linear"):
        raise refuse(source, key, f"rope scaling {kind!r} is not supported (none, linear)")
    for name in ("rope.scaling.factor", "rope.scale_linear"):
        key = f"{prefix}{name}"
        if not keys.has(key):
            continue
        factor = keys.number(key, minimum=1e-6, maximum=1e6)
        # Old files give scale_linear alone; a factor without a kind would be guesswork.
        if kind == "linear" or name == "rope.scale_linear":
            return factor
        if factor != 1.0:
            raise refuse(source, key, f"{factor} is given, but rope.scaling.type is {kind!r}")
    if kind == "linear":
        raise refuse(source, f"{prefix}rope.scaling.factor", "is missing")
    return 1.0


def _refuse_unknown_config(source: TensorSource, extra_keys: Collection[str]) -> None:
    keys = source.metadata
    for key in keys.keys():  # noqa: SIM118
        known = key in _CONFIG_KEYS or key in extra_keys
        if known or not _MEANINGFUL.search(key.lower()) or not keys.has(key):
            continue
        if _is_neutral(keys, key):
            continue
        raise refuse(source, key, "is not supported")


def _is_neutral(keys: Metadata, key: str) -> bool:
    """False, or a value that is no boolean at all (which is not neutral)."""
    try:
        return not keys.boolean(key)
    except ModelFileError:
        return False


def _config_rope(source: TensorSource) -> tuple[float, float]:
    """(theta, linear factor) from `rope_theta`, `rope_scaling` and the newer `rope_parameters`."""
    keys = source.metadata
    thetas: dict[str, float] = {}
    factors: dict[str, float] = {}
    if keys.has("rope_theta"):
        thetas["rope_theta"] = _theta(keys, "rope_theta")
    for where in ("rope_scaling", "rope_parameters"):
        rope = keys.mapping(where)
        if rope is None:
            continue
        if rope.has("rope_theta"):
            thetas[f"{where}.rope_theta"] = _theta(rope, "rope_theta")
        factors[where] = _config_rope_factor(source, where, rope)
    theta = _agreed(source, thetas, DEFAULT_THETA)
    return theta, _agreed(source, factors, 1.0)


def _theta(keys: Metadata, key: str) -> float:
    return keys.number(key, minimum=1e-6, maximum=1e30)


def _agreed(source: TensorSource, values: dict[str, float], default: float) -> float:
    """The one value that all spellings give."""
    if len(set(values.values())) > 1:
        told = ", ".join(f"{key} {value}" for key, value in values.items())
        raise refuse(source, next(iter(values)), f"is given twice and differs: {told}")
    return next(iter(values.values()), default)


def _config_rope_factor(source: TensorSource, where: str, rope: Metadata) -> float:
    kinds = {rope.string(key) for key in ("rope_type", "type") if rope.has(key)}
    if len(kinds) > 1:
        raise refuse(source, where, f"type and rope_type differ: {sorted(kinds)}")
    has_keys = any(rope.has(key) for key in rope.keys())  # noqa: SIM118
    if not kinds and has_keys and where == "rope_scaling":
        raise refuse(source, f"{where}.rope_type", "is missing")
    kind = next(iter(kinds), "default")
    if kind not in ("default", "linear"):
        raise refuse(source, where, f"rope scaling {kind!r} is not supported (linear)")
    for key in rope.keys():  # noqa: SIM118
        if key not in _ROPE_KEYS and rope.has(key):
            raise refuse(source, f"{where}.{key}", f"is not a setting of rope type {kind!r}")
    if kind == "linear":
        return rope.number("factor", minimum=1e-6, maximum=1e6)
    factor = rope.number("factor", default=1.0)
    if factor != 1.0:
        raise refuse(source, f"{where}.factor", f"{factor} is given, but no scaling kind uses it")
    return 1.0
