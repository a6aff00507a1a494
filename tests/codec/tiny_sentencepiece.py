"""A small SentencePiece vocabulary for tests, as GGUF metadata, and merging as it is defined.

Always true: each merged piece has a score of its own, unless a test gives two the same.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from codec.tiny_vocabulary import FakeSource

from insitu.codec.tokenizer import Tokenizer, load_tokenizer

CONTROL = ["<s>", "</s>", "<start_of_turn>", "<end_of_turn>"]
MARKERS = ["<tool_call>", "[multimodal]"]
TEXTS = ["\n\n", "\n\n\n", "  ", "<b>", "</b>", "ø"]
LETTERS = ["▁", *"abcdeghilnoprstuwxyGHW日本é"]
MERGED = [
    "he", "ll", "hell", "hello", "▁w", "or", "▁wor", "ld", "▁world", "▁t", "▁the", "▁▁", "▁▁▁▁",
    "aa", "aaa", "aaaa", "ab", "ba", "abab", "on", "▁on", "▁a", "▁on▁a", "▁h", "ill", "▁hill",
    "▁lead", "le", "ad", "▁x", "▁Good", "▁day", "<s", "e</", "日本",
]  # fmt: skip


def pieces() -> list[str]:
    """Tokens in id order: unknown, control, bytes, markers, texts, letters, merged."""
    numbered = [f"<0x{byte:02X}>" for byte in range(256)]
    return ["<unk>", *CONTROL, *numbered, *MARKERS, *TEXTS, *LETTERS, *MERGED]


ID = {piece: i for i, piece in enumerate(pieces())}


def score(piece: str) -> float:
    """Earlier merged pieces are better."""
    return -float(MERGED.index(piece)) if piece in MERGED else -1000.0


def metadata_values(**changes: Any) -> dict[str, Any]:
    """Metadata of the vocabulary; a change is a key's last part, None to leave it out."""
    types = [2] + [3] * len(CONTROL) + [6] * 256 + [4] * len(MARKERS + TEXTS)
    values = {
        "model": "llama",
        "tokens": pieces(),
        "token_type": types + [1] * len(LETTERS + MERGED),
        "scores": [score(piece) for piece in pieces()],
        "bos_token_id": ID["<s>"],
        "eos_token_id": ID["</s>"],
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def tiny_tokenizer(**changes: Any) -> Tokenizer:
    """The tokenizer of the vocabulary."""
    return load_tokenizer(FakeSource(values=metadata_values(**changes)))  # type: ignore[arg-type]


def merged_as_defined(text: str, scores: dict[str, float]) -> list[str]:
    """Merge the best pair of the whole text, of equals the leftmost, until none is left."""
    symbols = list(text)
    while True:
        pairs = [left + right for left, right in pairwise(symbols)]
        known = [(-scores[pair], at) for at, pair in enumerate(pairs) if pair in scores]
        if not known:
            return symbols
        at = min(known)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
