"""Write tiny models: random ones with real attention, and ones whose every next token is dictated.

Not here: any check. A GGUF and its safetensors twin hold the same weights (q and k rows of a llama
GGUF are permuted, as converters do); the vocabulary is byte-level BPE with a few merges.

Always true: the same arguments give the same bytes, under 200 kB by default.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gguf_bytes import TENSOR_TYPES, TensorBytes, gguf_bytes
from kernels.random_blocks import random_blocks

from insitu.kernels.assemble import can_assemble
from insitu.kernels.blocks import FLOATS, BlockType
from insitu.kernels.encode import encode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Float32 = npt.NDArray[np.float32]

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Ġ is a space and Ċ a line feed in the byte-level alphabet. Every merge's parts come before it.
MERGES = (
    "Ġ t", "h e", "Ġ a", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "o r", "e n", "Ġ w",
    "n d", "Ġa nd", "l l", "o u", "Ġ b", "Ġ c", "in g", "he ll", "hell o", "Ġ o", "s t", "u s",
    "us er", "Ġw or", "l d",
)  # fmt: skip
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_CALL = "<tool_call>"
END_TOKEN = "<|im_end|>"  # noqa: S105
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # tokenizer.ggml.token_type
PRE_TOKENIZERS = {"llama": "smollm", "qwen2": "qwen2"}
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id: 256 bytes, merged ones, ``extra`` ones no merge leads to, then added tokens."""

    extra: tuple[str | bytes, ...] = ()
    tokens: list[str] = field(init=False)
    types: list[int] = field(init=False)

    def __post_init__(self) -> None:
        """Lay the ids out."""
        alphabet = byte_alphabet()
        extra = ["".join(alphabet[byte] for byte in _raw(text)) for text in self.extra]
        normal = [*alphabet, *("".join(merge.split()) for merge in MERGES), *extra]
        added = [*CONTROL_TOKENS, TOOL_CALL]
        kinds = [CONTROL] * len(CONTROL_TOKENS) + [USER_DEFINED]
        object.__setattr__(self, "tokens", [*normal, *added])
        object.__setattr__(self, "types", [NORMAL] * len(normal) + kinds)

    def __len__(self) -> int:
        """How many tokens."""
        return len(self.tokens)

    def id_of(self, text: str | bytes) -> int:
        """The id of an added token, or of the normal token that decodes to ``text``."""
        if text in self.tokens[-len(CONTROL_TOKENS) - 1 :]:
            return self.tokens.index(str(text))
        alphabet = byte_alphabet()
        return self.tokens.index("".join(alphabet[byte] for byte in _raw(text)))

    def id_of_byte(self, byte: int) -> int:
        """The id of a token of one byte."""
        return self.tokens.index(byte_alphabet()[byte])


def _raw(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a tiny decoder. K block types need hidden_size and intermediate_size of 256."""

    architecture: str = "llama"
    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    tied: bool = False
    max_model_len: int = 512
    rope_theta: float = 10000.0
    norm_eps: float = 2.0**-17  # exact in float32, so a GGUF and its twin agree to the bit
    vocabulary: Vocabulary = field(default_factory=Vocabulary)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def random_weights(shape: TinyShape, seed: int = 0) -> dict[str, Float32]:
    """Every tensor by its name in a Hugging Face checkpoint; matrices of about unit gain."""
    rng = np.random.default_rng(seed)

    def matrix(n: int, k: int) -> Float32:
        return np.asarray(rng.standard_normal((n, k)) / np.sqrt(k), np.float32)

    def norm() -> Float32:
        return np.asarray(1 + 0.1 * rng.standard_normal(shape.hidden_size), np.float32)

    hidden, inner = shape.hidden_size, shape.intermediate_size
    q_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    weights = {"model.embed_tokens.weight": matrix(len(shape.vocabulary), hidden) * 8}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        weights[f"{prefix}input_layernorm.weight"] = norm()
        for name, size in sizes.items():
            weights[f"{prefix}self_attn.{name}.weight"] = matrix(size, hidden) * 2
            if shape.architecture == "qwen2":
                weights[f"{prefix}self_attn.{name}.bias"] = matrix(1, size)[0]
        weights[f"{prefix}self_attn.o_proj.weight"] = matrix(hidden, q_size)
        weights[f"{prefix}post_attention_layernorm.weight"] = norm()
        weights[f"{prefix}mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}mlp.down_proj.weight"] = matrix(hidden, inner)
    weights["model.norm.weight"] = norm()
    if not shape.tied:
        weights["lm_head.weight"] = matrix(len(shape.vocabulary), hidden) * 3
    return weights


def write_gguf(
    path: Path,
    *,
    block_types: BlockType | Mapping[str, BlockType] = BlockType.Q8_0,
    seed: int = 0,
    version: int = 3,
    weights: Mapping[str, Float32] | None = None,
    pairs: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> TinyShape:
    """Write a random model; ``sizes`` are fields of ``TinyShape``.

    ``block_types`` is one for all matrices, or by GGUF name ("attn_q", "token_embd", ...; others
    Q8_0). ``pairs`` adds metadata or replaces it (None takes a key out).
    """
    shape = replace(TinyShape(), **sizes)
    weights = random_weights(shape, seed) if weights is None else weights
    metadata = {**gguf_pairs(shape), **(pairs or {})}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    tensors = [_gguf_tensor(shape, name, w, block_types) for name, w in weights.items()]
    path.write_bytes(gguf_bytes(metadata, tensors, version=version))
    return shape


def gguf_pairs(shape: TinyShape) -> dict[str, Any]:
    """The metadata of a shape's GGUF file."""
    words, arch = shape.vocabulary, shape.architecture
    return {
        "general.architecture": arch,
        "general.name": f"tiny {arch}",
        f"{arch}.block_count": shape.num_layers,
        f"{arch}.context_length": shape.max_model_len,
        f"{arch}.embedding_length": shape.hidden_size,
        f"{arch}.feed_forward_length": shape.intermediate_size,
        f"{arch}.attention.head_count": shape.num_heads,
        f"{arch}.attention.head_count_kv": shape.num_kv_heads,
        f"{arch}.attention.key_length": shape.head_dim,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(shape.norm_eps),
        f"{arch}.rope.freq_base": float(shape.rope_theta),
        f"{arch}.rope.dimension_count": shape.head_dim,
        f"{arch}.vocab_size": len(words),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": PRE_TOKENIZERS[arch],
        "tokenizer.ggml.tokens": words.tokens,
        "tokenizer.ggml.token_type": words.types,
        "tokenizer.ggml.merges": list(MERGES),
        "tokenizer.ggml.bos_token_id": words.id_of("<|endoftext|>"),
        "tokenizer.ggml.eos_token_id": words.id_of(END_TOKEN),
        "tokenizer.ggml.padding_token_id": words.id_of("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _gguf_tensor(
    shape: TinyShape, name: str, weight: Float32, block_types: BlockType | Mapping[str, BlockType]
) -> TensorBytes:
    stem, suffix = name.rsplit(".", 1)
    layer = ""
    if stem.startswith("model.layers."):
        layer, stem = stem.removeprefix("model.layers.").split(".", 1)
        layer = f"blk.{layer}."
    short = GGUF_NAMES[stem]
    if shape.architecture == "llama" and short in {"attn_q", "attn_k"}:
        weight = pairs_adjacent(weight, shape.head_dim)
    if weight.ndim == 1:
        block_type = BlockType.F32
    elif isinstance(block_types, BlockType):
        block_type = block_types
    else:
        block_type = block_types.get(short, BlockType.Q8_0)
    rows = weight.reshape(-1, weight.shape[-1])
    if block_type in FLOATS or can_assemble(block_type):
        data = encode(block_type, rows)
    else:  # no simple encoder: any weights will do
        data = random_blocks(block_type, *rows.shape).tobytes()
    dims = list(reversed(weight.shape))
    return TensorBytes(f"{layer}{short}.{suffix}", dims, TENSOR_TYPES[block_type], data)


def pairs_adjacent(weight: Float32, head_dim: int) -> Float32:
    """Every head's rows from (i, i + dim/2) pairs to the (2i, 2i + 1) pairs of llama GGUFs."""
    n, k = weight.shape
    halves = weight.reshape(n // head_dim, 2, head_dim // 2, k)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(n, k))


def write_chain_gguf(
    path: Path,
    successor: Mapping[int, int] | Sequence[int],
    *,
    block_type: BlockType = BlockType.Q8_0,
    extra_tokens: Sequence[str | bytes] = (),
    spoilt: Sequence[int] = (),
    pairs: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> TinyShape:
    """Write a model whose greedy next token depends on the current one only.

    ``successor`` says which follows which; an id it leaves out is followed by the end token.
    One-hot embeddings pass through untouched (o_proj and down_proj are zero) to an untied head.
    ``extra_tokens`` are texts with an id of their own, which encoding never produces; nothing can
    be computed from ``spoilt`` ids, whose embeddings are not numbers.
    """
    words = Vocabulary(tuple(extra_tokens))
    fixed = {"num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 32}
    fixed |= {"hidden_size": -(-len(words) // 32) * 32}
    shape = replace(TinyShape(), vocabulary=words, **{**fixed, **sizes})
    weights = random_weights(shape)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "norm.weight")):
            weight[:] = 1 if name.endswith("norm.weight") else 0
    weights["model.embed_tokens.weight"] = np.eye(len(words), shape.hidden_size, dtype=np.float32)
    weights["model.embed_tokens.weight"][list(spoilt)] = np.nan
    block_types = {"token_embd": BlockType.F32} if spoilt else block_type
    head = np.zeros((len(words), shape.hidden_size), np.float32)
    items = dict(successor) if isinstance(successor, Mapping) else dict(enumerate(successor))
    for token_id in range(len(words)):
        head[items.get(token_id, words.id_of(END_TOKEN)), token_id] = 1
    weights["lm_head.weight"] = head
    write_gguf(path, block_types=block_types, weights=weights, pairs=pairs, **vars(shape))
    return shape


def write_safetensors(
    folder: Path,
    *,
    dtype: BlockType = BlockType.F32,
    seed: int = 0,
    weights: Mapping[str, Float32] | None = None,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    **sizes: Any,
) -> TinyShape:
    """Write the same model as ``write_gguf`` with the same seed and sizes, as a folder.

    ``config`` and ``generation`` add keys to config.json and generation_config.json.
    """
    shape = replace(TinyShape(), **sizes)
    weights = random_weights(shape, seed) if weights is None else weights
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights, dtype))
    words = shape.vocabulary
    end_id, start_id = words.id_of(END_TOKEN), words.id_of("<|endoftext|>")
    _write_json(folder / "config.json", {**config_of(shape, dtype), **(config or {})})
    _write_json(folder / "tokenizer.json", tokenizer_json(shape))
    texts = {"bos_token": "<|endoftext|>", "eos_token": END_TOKEN, "pad_token": "<|endoftext|>"}
    texts |= {"chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(folder / "tokenizer_config.json", {"add_bos_token": False, **texts})
    ids = {"bos_token_id": start_id, "eos_token_id": [end_id]}
    _write_json(folder / "generation_config.json", {**ids, **(generation or {})})
    return shape


def safetensors_bytes(weights: Mapping[str, Float32], dtype: BlockType) -> bytes:
    """A whole file of one dtype."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, weight in weights.items():
        raw = encode(dtype, weight.reshape(-1, weight.shape[-1]))
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype.value, "shape": weight.shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def config_of(shape: TinyShape, dtype: BlockType) -> dict[str, Any]:
    """The config.json of a shape."""
    words = shape.vocabulary
    family = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}[shape.architecture]
    return {
        "architectures": [family],
        "model_type": shape.architecture,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": len(words),
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_model_len,
        "hidden_act": "silu",
        "tie_word_embeddings": shape.tied,
        "torch_dtype": {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype],
        "bos_token_id": words.id_of("<|endoftext|>"),
        "eos_token_id": words.id_of(END_TOKEN),
    }


def tokenizer_json(shape: TinyShape) -> dict[str, Any]:
    """The tokenizer.json that says what the GGUF's metadata says."""
    words = shape.vocabulary
    num_normal = words.types.count(NORMAL)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    if shape.architecture == "llama":
        first: dict[str, Any] = {"type": "Digits", "individual_digits": True}
        byte_level["use_regex"] = True
    else:
        split = {"pattern": {"Regex": QWEN2_SPLIT}, "behavior": "Isolated", "invert": False}
        first = {"type": "Split", **split}
        byte_level["use_regex"] = False
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": index, "content": words.tokens[index], "special": words.types[index] == CONTROL}
        for index in range(num_normal, len(words))
    ]
    vocab = {token: index for index, token in enumerate(words.tokens[:num_normal])}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**token, **flags} for token in added],
        "normalizer": {"type": "NFC"} if shape.architecture == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [first, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": [merge.split() for merge in MERGES],
        },
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), "utf-8")
