"""What a model file says of its tokens, before anything is built from it.

Not here: reading either file format (``gguf_vocabulary``, ``tokenizer_json``), encoding.

Always true: ids run from 0 to ``len(pieces) - 1``, and every id named is one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenType(IntEnum):
    """GGUF's token types that a byte-level vocabulary may hold."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens by id, and how text becomes ids.

    ``pieces``: normal tokens in the byte map's characters, others as they are spelt.
    ``added``: spelling to id of tokens that are matched as a whole (control and user-defined).
    ``padding``: ids that stand for nothing. ``prefix_ids`` and ``suffix_ids``: what
    ``add_special_tokens`` puts around a text. ``special_texts``: bos_token, eos_token, ...
    ``encode_plain``: ids of text in which no added token is recognised. ``is_normalized``: what it
    encodes is the text's NFC form, which may be shorter.
    """

    pieces: list[str]
    added: dict[str, int]
    control_ids: frozenset[int]
    padding_ids: frozenset[int]
    end_ids: frozenset[int]
    encode_plain: Callable[[str], list[int]]
    missing_bytes: bytes = b""
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    is_normalized: bool = False
    special_texts: dict[str, str] = field(default_factory=dict)


class MergeFault(Exception):
    """Merge ``index`` cannot be: ``reason``."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"merge {index}: {reason}")
        self.index = index
        self.reason = reason


def plain_encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """Ids of a text by the library, which lets go of the GIL only in its batch calls."""

    def encode_plain(text: str) -> list[int]:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    return encode_plain


def build_bpe(
    normal: dict[str, int],
    merges: list[tuple[str, str]],
    added: dict[str, int],
    *,
    ignore_merges: bool,
) -> Any:
    """The library's BPE model over normal tokens alone.

    A merge that would make or use an added token is left out: merging never spells a control token.
    """
    from tokenizers import models  # noqa: PLC0415 - slow to import

    def build(rules: list[tuple[str, str]]) -> Any:
        return models.BPE(vocab=normal, merges=rules, ignore_merges=ignore_merges)

    try:
        return build(merges)
    except Exception:
        # The library names no index, and does not know added tokens.
        kept = []
        for index, (left, right) in enumerate(merges):
            unknown = [part for part in (left, right, left + right) if part not in normal]
            if not unknown:
                kept.append((left, right))
            elif not all(part in added for part in unknown):
                culprit = next(part for part in unknown if part not in added)
                raise MergeFault(index, f"{culprit[:80]!a} is not a token") from None
        if len(kept) == len(merges):
            raise
        return build(kept)
