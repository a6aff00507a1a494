"""Tiny checkpoints of every family: a config.json each, and weights made from names and shapes.

Not here: any check, torch, or insitu. ``record.py`` (with transformers) and the tests (with insitu)
make the same bytes from this file.

Always true: a tensor's numbers depend on its name and shape alone.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Float32 = npt.NDArray[np.float32]

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """A checkpoint, and how many tokens of it are run; ``max_model_len`` fixes its rope."""

    config: dict[str, Any]
    num_tokens: int = 40
    max_model_len: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def config_json(self) -> dict[str, Any]:
        """The whole config.json."""
        merged = {**SIZES, "dtype": "float32", **self.config, **self.extra}
        return {key: value for key, value in merged.items() if value is not ...}

    def tokens(self) -> npt.NDArray[np.int32]:
        """The ids that are run."""
        return np.random.default_rng(5).integers(0, 64, self.num_tokens).astype(np.int32)

    def rows(self) -> list[int]:
        """Positions whose logits are recorded: the first, some within, the last."""
        last = self.num_tokens - 1
        return sorted({0, 5, last // 2, last - 6, last})


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
PHI3_LONG = {
    "original_max_position_embeddings": 16,
    "partial_rotary_factor": 0.75,
    "head_dim": 32,
    "hidden_size": 128,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(12)],
        "long_factor": [1.0 + 0.5 * i for i in range(12)],
    },
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA = {
    "head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 8,
    "query_pre_attn_scalar": 32,
    "tie_word_embeddings": True,
}
GEMMA2 = {
    **GEMMA,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "num_hidden_layers": 3,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 10.0,
}
GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 64}
QWEN2_MOE = {
    **EXPERTS,
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "num_experts": 6,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "norm_topk_prob": False,
}

CASES: dict[str, Case] = {
    "llama": Case(LLAMA),
    "llama-biases": Case({**LLAMA, "attention_bias": True, "mlp_bias": True}),
    "llama-linear": Case({**LLAMA, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama-dynamic": Case(
        {
            **LLAMA,
            "max_position_embeddings": 16,
            "rope_scaling": {"rope_type": "dynamic", "factor": 3.0},
        },
        max_model_len=40,
    ),
    "llama-yarn": Case({**LLAMA, "head_dim": 32, "rope_scaling": YARN}),
    "llama-llama3": Case({**LLAMA, "head_dim": 32, "rope_theta": 5e5, "rope_scaling": LLAMA3}),
    "mistral": Case(
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": 8,
            "head_dim": 32,
        }
    ),
    "qwen2": Case(QWEN2),
    "qwen2-windows": Case(
        {**QWEN2, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
    ),
    "qwen3": Case({**QWEN3, "rope_theta": 1e6}),
    "gemma3": Case(
        {
            **GEMMA,
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "num_hidden_layers": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        }
    ),
    "gemma2": Case(GEMMA2),
    "gemma2-scalar": Case({**GEMMA2, "query_pre_attn_scalar": 24}),
    "phi3": Case({**PHI3, "sliding_window": 8}),
    "phi3-longrope-short": Case({**PHI3, **PHI3_LONG}, num_tokens=16, max_model_len=16),
    "phi3-longrope-long": Case({**PHI3, **PHI3_LONG}, max_model_len=40),
    "smollm3": Case(
        {
            "architectures": ["SmolLM3ForCausalLM"],
            "model_type": "smollm3",
            "num_hidden_layers": 5,
            "rope_theta": 2e6,
            "pad_token_id": 0,
        }
    ),
    "granite": Case({**GRANITE, "architectures": ["GraniteForCausalLM"], "model_type": "granite"}),
    "granite-unscaled": Case(
        {
            **GRANITE,
            "attention_multiplier": ...,
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
        }
    ),
    "olmo2": Case({"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}),
    "stablelm": Case(
        {
            "architectures": ["StableLmForCausalLM"],
            "model_type": "stablelm",
            "rms_norm_eps": ...,
            "layer_norm_eps": 1e-5,
            "use_qkv_bias": True,
            "partial_rotary_factor": 0.25,
            "num_key_value_heads": 4,
        }
    ),
    "gpt2": Case(
        {
            **dict.fromkeys(SIZES, ...),
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": 64,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 48,
            "tie_word_embeddings": True,
        }
    ),
    "mixtral": Case(
        {
            **EXPERTS,
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": 4,
            "rope_theta": 1e6,
            "sliding_window": None,
        }
    ),
    "qwen2-moe": Case(QWEN2_MOE),
    "qwen2-moe-dense": Case({**QWEN2_MOE, "num_hidden_layers": 3, "mlp_only_layers": [1]}),
    "qwen3-moe": Case(
        {
            **EXPERTS,
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "head_dim": 32,
            "num_experts": 8,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        }
    ),
    "granite-moe": Case(
        {
            **GRANITE,
            **EXPERTS,
            "architectures": ["GraniteMoeForCausalLM"],
            "model_type": "granitemoe",
            "num_local_experts": 4,
        }
    ),
    "granite-moe-shared": Case(
        {
            **GRANITE,
            **EXPERTS,
            "architectures": ["GraniteMoeSharedForCausalLM"],
            "model_type": "granitemoeshared",
            "num_local_experts": 4,
            "shared_intermediate_size": 96,
        }
    ),
    "olmoe": Case(
        {
            **EXPERTS,
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "num_experts": 8,
            "num_key_value_heads": 4,
        }
    ),
}


def tensor(name: str, shape: tuple[int, ...]) -> Float32:
    """Matrices of about unit gain, factors near 1, small offsets."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = rng.standard_normal(shape)
    if len(shape) == 1:
        is_factor = "norm" in name or ".ln_" in name or name.startswith("ln_")
        centre = 1.0 if is_factor and name.endswith(".weight") else 0.0
        return np.asarray(centre + 0.2 * values, np.float32)
    if "embed" in name or "wte" in name or "wpe" in name:
        return np.asarray(values / 4, np.float32)
    return np.asarray(values * 1.5 / np.sqrt(shape[-1]), np.float32)


def weights(shapes: Mapping[str, list[int]]) -> dict[str, Float32]:
    """Every tensor of a checkpoint."""
    return {name: tensor(name, tuple(shape)) for name, shape in shapes.items()}


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Float32]) -> None:
    """config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        offsets = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": offsets}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
