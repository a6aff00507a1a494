"""Sound inputs of each target, for a fuzzer to start from.

Not here: any check.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from gguf_bytes import TensorBytes, gguf_bytes
from tiny_model import CHAT_TEMPLATE, TinyShape, safetensors_bytes, tokenizer_json

from insitu.kernels.blocks import BlockType

if TYPE_CHECKING:
    from collections.abc import Mapping


def seeds() -> Mapping[str, bytes]:
    """One for each target, of a few hundred bytes up to some thousand."""
    tensor = TensorBytes("a.weight", [32, 2], 8, bytes(68))
    pairs = {"general.architecture": "llama", "llama.block_count": 2, "tokens": ["a", "b"]}
    weights = {"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float32)}
    return {
        "gguf": gguf_bytes(pairs, [tensor]),
        "safetensors": safetensors_bytes(weights, BlockType.F32),
        "tokenizer": json.dumps(tokenizer_json(TinyShape())).encode(),
        "template": CHAT_TEMPLATE.encode(),
    }
