"""A small byte-level vocabulary for tests, as GGUF metadata and as a tokenizer.json.

Not here: real vocabularies (``test_real_models``).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from insitu.codec.byte_map import byte_characters
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.weights.metadata import Metadata

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "a b", "ab c", "u s", "us e", "use r"]
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im", "<|im_end|>>"]
ADDED = ["<tool_call>", "</tool_call>", "Größe", "ÿ|é"]
PADDING = ["[PAD0]", "[PAD1]"]


def pieces() -> list[str]:
    """Tokens in id order: 256 bytes, merged ones, control, added, padding."""
    merged = [merge.replace(" ", "") for merge in MERGES]
    return [*byte_characters().values(), *merged, *CONTROL, *ADDED, *PADDING]


def metadata_values(**changes: Any) -> dict[str, Any]:
    """Metadata of the vocabulary; a change is a key's last part, None to leave it out."""
    tokens = pieces()
    num_normal = 256 + len(MERGES)
    values = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [1] * num_normal + [3] * len(CONTROL) + [4] * len(ADDED) + [5] * len(PADDING),
        "merges": MERGES,
        "bos_token_id": tokens.index("<|im_start|>"),
        "eos_token_id": tokens.index("<|im_end|>"),
        "add_bos_token": False,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


@dataclass
class FakeSource:
    """An open model file or folder, as far as a codec looks at it."""

    format: str = "gguf"
    values: dict[str, Any] = field(default_factory=metadata_values)
    files: dict[str, bytes] = field(default_factory=dict)
    path: Path = Path("model.gguf")

    @property
    def metadata(self) -> Metadata:
        """The header's keys."""
        return Metadata(self.path, self.values)

    def file(self, name: str) -> bytes | None:
        """A file of the folder."""
        return self.files.get(name)


def tiny_tokenizer(**changes: Any) -> Tokenizer:
    """The tokenizer of the vocabulary."""
    return load_tokenizer(FakeSource(values=metadata_values(**changes)))  # type: ignore[arg-type]


def tokenizer_json(**changes: Any) -> dict[str, Any]:
    """The same vocabulary as Hugging Face writes it; PADDING is not in it."""
    tokens = pieces()
    num_normal = 256 + len(MERGES)
    added = [*CONTROL, *ADDED]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": tokens.index(token), "content": token, "special": token in CONTROL,
             "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
            for token in added
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens[:num_normal])},
                  "merges": [merge.split(" ") for merge in MERGES]},
        **changes,
    }  # fmt: skip


def folder(file: dict[str, Any], **others: Any) -> FakeSource:
    """A Hugging Face folder with that tokenizer.json; other files by stem."""
    files = {"tokenizer.json": json.dumps(file).encode()}
    files.update({f"{name}.json": json.dumps(value).encode() for name, value in others.items()})
    return FakeSource("safetensors", {"vocab_size": len(pieces())}, files, Path("folder"))
