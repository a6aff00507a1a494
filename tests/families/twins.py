"""The same tiny checkpoints as GGUF files: keys and names as converters write them.

Names come from the gguf package's own table. Not here: any check.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf_bytes import TENSOR_TYPES, TensorBytes, gguf_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from families.cases import Case

Float32 = npt.NDArray[np.float32]

ARCHITECTURES = {
    "mistral": "llama",
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "granitemoeshared": "granitemoe",
}
# Their q and k rows are permuted, so that a pair's dims are neighbours.
PERMUTED = {"llama", "granite", "granitemoe", "smollm3"}
# By the key in config.json; what is not here has no key, or is worked out in ``pairs``.
KEYS = {
    "hidden_size": "embedding_length",
    "n_embd": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "n_layer": "block_count",
    "num_attention_heads": "attention.head_count",
    "n_head": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "n_positions": "context_length",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "embedding_multiplier": "embedding_scale",
    "attention_multiplier": "attention.scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "num_local_experts": "expert_count",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "shared_intermediate_size": "expert_shared_feed_forward_length",
}


def write_twin(
    path: Path,
    case: Case,
    weights: Mapping[str, Float32],
    rope_freqs: Float32 | None = None,
    **pairs: Any,
) -> None:
    """Write the checkpoint as a GGUF file of float32 tensors; ``pairs``: keys of the rope."""
    config = case.config_json()
    kind = config["model_type"]
    arch = ARCHITECTURES.get(kind, kind)
    tensors = dict(_named(arch, config, dict(weights)))
    tensors |= _rope_tensors(config)
    tensors |= {} if rope_freqs is None else {"rope_freqs.weight": rope_freqs}
    raw = [
        TensorBytes(name, tuple(reversed(x.shape)), TENSOR_TYPES["F32"], x.tobytes())
        for name, x in tensors.items()
    ]
    more = {f"{arch}.rope.{key.replace('_', '.', 1)}": value for key, value in pairs.items()}
    path.write_bytes(gguf_bytes(_pairs(arch, config) | more, raw))


def _pairs(arch: str, config: Mapping[str, Any]) -> dict[str, Any]:
    values = {KEYS[key]: value for key, value in config.items() if key in KEYS and value}
    head_dim = config.get("head_dim")
    if head_dim:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if "n_embd" in config:
        values["feed_forward_length"] = 4 * config["n_embd"]
        values["attention.layer_norm_epsilon"] = 1e-5
    if "partial_rotary_factor" in config:
        whole = head_dim or config["hidden_size"] // config["num_attention_heads"]
        values["rope.dimension_count"] = int(whole * config["partial_rotary_factor"])
    values |= _rope_keys(config)
    return {"general.architecture": arch} | {f"{arch}.{key}": x for key, x in values.items()}


def _rope_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    original = scaling.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        keys = {"rope.scaling.type": kind, "rope.scaling.factor": scaling["factor"]}
        return keys | ({"rope.scaling.original_context_length": original} if original else {})
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        factor = config["max_position_embeddings"] / original
        magnitude = float(np.sqrt(1 + np.log(factor) / np.log(original)))
        keys = {"rope.scaling.original_context_length": original}
        return keys | {"rope.scaling.attn_factor": magnitude}
    return {}


def _rope_tensors(config: Mapping[str, Any]) -> dict[str, Float32]:
    scaling = config.get("rope_scaling") or {}
    if scaling.get("type") == "longrope":
        return {
            f"rope_factors_{which}.weight": np.array(scaling[f"{which}_factor"], np.float32)
            for which in ("long", "short")
        }
    if scaling.get("rope_type") != "llama3":
        return {}
    dim = config["head_dim"]
    waves = 2 * np.pi * config["rope_theta"] ** (np.arange(0, dim, 2) / dim)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    kept = (scaling["original_max_position_embeddings"] / waves - low) / (high - low)
    kept = np.clip(kept, 0, 1)
    divisors = 1 / ((1 - kept) / scaling["factor"] + kept)
    return {"rope_freqs.weight": divisors.astype(np.float32)}


def _named(
    arch: str, config: Mapping[str, Any], weights: dict[str, Float32]
) -> Iterator[tuple[str, Float32]]:
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, 8)
    yield from _experts(weights)
    for name, x in weights.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        value = x
        if arch in PERMUTED and re.search(r"[qk]_proj\.(weight|bias)$", name):
            value = _permuted(x, config, is_query=".q_proj." in name)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            value = x + 1
        if arch == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", name):
            value = np.ascontiguousarray(x.T)
        if name.endswith("shared_expert_gate.weight"):
            value = x.reshape(-1)
        given = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert given is not None, name
        yield given, np.asarray(value, np.float32)


def _permuted(x: Float32, config: Mapping[str, Any], *, is_query: bool) -> Float32:
    heads = config["num_attention_heads" if is_query else "num_key_value_heads"]
    halves = x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(x.shape))


# An expert's matrices in a checkpoint -> the stacked tensor's name.
EXPERTS = {
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w3": "up",
    "w2": "down",
}


def _experts(weights: dict[str, Float32]) -> Iterator[tuple[str, Float32]]:
    """Takes experts' tensors out of ``weights``, stacked; fused gate and up are split."""
    stacks: dict[str, list[Float32]] = {}
    for name in [name for name in weights if ".experts." in name]:
        layer, expert, part = re.findall(r"layers\.(\d+)\..*experts\.(\d+)\.(\w+)\.", name)[0]
        stack = stacks.setdefault(f"blk.{layer}.ffn_{EXPERTS[part]}_exps.weight", [])
        assert int(expert) == len(stack)
        stack.append(weights.pop(name))
    for name, stack in stacks.items():
        yield name, np.stack(stack)
    for name in [name for name in weights if re.search(r"(in|out)put_linear", name)]:
        layer = re.findall(r"layers\.(\d+)\.", name)[0]
        kind = "shexp" if "shared_mlp" in name else "exps"
        x = weights.pop(name)
        if "output_linear" in name:
            yield f"blk.{layer}.ffn_down_{kind}.weight", x
            continue
        gate, up = np.split(x, 2, axis=-2)
        yield f"blk.{layer}.ffn_gate_{kind}.weight", np.ascontiguousarray(gate)
        yield f"blk.{layer}.ffn_up_{kind}.weight", np.ascontiguousarray(up)
