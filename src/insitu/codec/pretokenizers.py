"""How each family of byte-level vocabularies cuts text into words before merging.

Not here: pre-tokenizers that a tokenizer.json declares itself.

Always true: a name that is not in the table is refused; guessing would give other ids in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Family:
    """``split`` None: GPT-2's own expression. ``whole_words``: a word of the vocabulary needs no
    merges. ``adds_bos``: what an absent ``add_bos_token`` means.
    """

    split: str | None = None
    has_single_digits: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_LLAMA3 = Family(
    split=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL,
    whole_words=True,
    adds_bos=True,
)
FAMILIES = {
    "gpt-2": Family(),
    "smollm": Family(has_single_digits=True),
    "qwen2": Family(split=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
}


def pre_tokenizer_of(family: Family) -> PreTokenizer:
    """The library's pre-tokenizer, byte map included."""
    from tokenizers import Regex, pre_tokenizers  # noqa: PLC0415 - slow to import

    if family.split is not None:
        split = pre_tokenizers.Split(Regex(family.split), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if not family.has_single_digits:
        return words
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
