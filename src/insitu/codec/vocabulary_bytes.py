"""What a vocabulary takes in memory once it is read, told from its kind and its number of tokens.

Not here: reading it. Always true: nothing is built, so that a plan may ask first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.codec.gguf_tokens import KEY
from insitu.codec.tokenizer_steps import FILE

if TYPE_CHECKING:
    from insitu.weights.tensors import TensorSource

# A token of each kind, measured with vocabularies of 30,000 to 260,000: merges by the library 255
# to 311, by score 191 to 215, by rank 463, Unigram 1,143, WordPiece 296. More below 50,000, where
# what does not grow with tokens shows.
_BYTES = {"gpt2": 310, "llama": 230, "gemma4": 470, "t5": 1150, "bert": 310}
_OTHER_BYTES = 310
_FIXED_BYTES = 2**20


def vocabulary_bytes(source: TensorSource) -> int:
    """Of a model file or folder."""
    if source.format == "gguf":
        kind = _BYTES.get(source.metadata.string(KEY + "model", ""), _OTHER_BYTES)
        key = KEY + "tokens"
        num_tokens = source.metadata.length(key) if source.metadata.has(key) else 0
        return _FIXED_BYTES + kind * num_tokens
    kind = _BYTES["t5"] if b'"Unigram"' in (source.file(FILE) or b"") else _OTHER_BYTES
    return _FIXED_BYTES + kind * source.metadata.integer("vocab_size", 0, minimum=0)
