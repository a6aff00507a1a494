"""The vocabulary that GGUF metadata describes.

Not here: GGUF's bytes (``weights``). Only byte-level BPE (``tokenizer.ggml.model`` "gpt2") is read.

Always true: a fault names the key it lies in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.byte_map import missing_bytes
from insitu.codec.pretokenizers import FAMILIES, Family, pre_tokenizer_of
from insitu.codec.vocabulary import MergeFault, TokenType, Vocabulary, build_bpe, plain_encoder
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from insitu.weights.metadata import Metadata

_KEY = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_TEXT_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_vocabulary(path: Path, metadata: Metadata) -> Vocabulary:
    """The vocabulary of a GGUF file."""
    family = _family(path, metadata)
    pieces: list[str] = metadata.strings(_KEY + "tokens")
    if not pieces:
        raise metadata.fault(_KEY + "tokens", "is empty")
    named = _named_ids(metadata, len(pieces))
    types = _types(metadata, len(pieces), named)
    by_type: dict[int, list[int]] = {kind: [] for kind in TokenType}
    for token_id, kind in enumerate(types):
        by_type[kind].append(token_id)
    added_ids = [*by_type[TokenType.CONTROL], *by_type[TokenType.USER_DEFINED]]
    added = _spellings(metadata, pieces, added_ids)
    normal = _spellings(metadata, pieces, by_type[TokenType.NORMAL])
    prefix_ids, suffix_ids = _around(metadata, family, named)
    return Vocabulary(
        pieces=pieces,
        added=added,
        control_ids=frozenset(by_type[TokenType.CONTROL]),
        padding_ids=frozenset([*by_type[TokenType.UNUSED], *by_type[TokenType.UNKNOWN]]),
        end_ids=frozenset(named[key] for key in _END_KEYS if key in named),
        encode_plain=_encoder(metadata, family, normal, added),
        missing_bytes=missing_bytes(normal),
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        special_texts={
            name: pieces[named[key]] for name, key in _TEXT_KEYS.items() if key in named
        },
    )


def _family(path: Path, metadata: Metadata) -> Family:
    model: str = metadata.string(_KEY + "model")
    if model != "gpt2":
        message = f"tokenizer model {shown(model)} is not supported; supported: 'gpt2'"
        raise UnsupportedModelError(path, f"key {_KEY}model", message)
    pre = metadata.string(_KEY + "pre", "default")
    if pre not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        message = f"pre-tokenizer {shown(pre)} is not supported; supported: {known}"
        raise UnsupportedModelError(path, f"key {_KEY}pre", message)
    if metadata.boolean(_KEY + "add_space_prefix", False):
        message = "a space before the text is not supported in a byte-level vocabulary"
        raise UnsupportedModelError(path, f"key {_KEY}add_space_prefix", message)
    return FAMILIES[pre]


def _named_ids(metadata: Metadata, num_tokens: int) -> dict[str, int]:
    named = {}
    for key in {*_END_KEYS, *_TEXT_KEYS.values()}:
        token_id = metadata.integer(_KEY + key, None, minimum=0, maximum=num_tokens - 1)
        if token_id is not None:
            named[key] = token_id
    return named


def _types(metadata: Metadata, num_tokens: int, named: dict[str, int]) -> list[int]:
    key = _KEY + "token_type"
    types = metadata.integers(key, None)
    if types is None:
        control = set(named.values())
        return [TokenType.CONTROL if i in control else TokenType.NORMAL for i in range(num_tokens)]
    if len(types) != num_tokens:
        message = f"has {len(types)} entries for {num_tokens} tokens"
        raise metadata.fault(key, message)
    unknown = set(types) - set(TokenType)
    if unknown:
        kind = min(unknown)
        message = f"is {kind}, which a byte-level vocabulary does not have"
        raise metadata.fault(f"{key}[{types.index(kind)}]", message)
    _check_scores(metadata, num_tokens)
    return types


def _check_scores(metadata: Metadata, num_tokens: int) -> None:
    # Merging by rank needs no scores; but a file that has wrong ones is a broken file.
    scores = metadata.numbers(_KEY + "scores", None)
    if scores is not None and len(scores) != num_tokens:
        raise metadata.fault(_KEY + "scores", f"has {len(scores)} entries for {num_tokens} tokens")


def _spellings(metadata: Metadata, pieces: list[str], ids: list[int]) -> dict[str, int]:
    spellings = {pieces[token_id]: token_id for token_id in ids}
    if len(spellings) != len(ids) or "" in spellings:
        for token_id in ids:
            piece = pieces[token_id]
            if not piece:
                raise metadata.fault(f"{_KEY}tokens[{token_id}]", "is empty")
            if spellings[piece] != token_id:
                message = f"is {shown(piece)}, as is token {spellings[piece]}"
                raise metadata.fault(f"{_KEY}tokens[{token_id}]", message)
    return spellings


def _around(
    metadata: Metadata, family: Family, named: dict[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    around = []
    for flag, key, default in (
        ("add_bos_token", "bos_token_id", family.adds_bos),
        ("add_eos_token", "eos_token_id", False),
    ):
        is_wanted = metadata.boolean(_KEY + flag, None)
        if is_wanted and key not in named:
            raise metadata.fault(_KEY + flag, f"is true, but {_KEY}{key} is missing")
        is_wanted = default if is_wanted is None else is_wanted
        around.append((named[key],) if is_wanted and key in named else ())
    return around[0], around[1]


def _encoder(
    metadata: Metadata, family: Family, normal: dict[str, int], added: dict[str, int]
) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer  # noqa: PLC0415 - slow to import

    key = _KEY + "merges"
    lines: list[str] = metadata.strings(key)
    merges: list[Any] = [tuple(line.split(" ")) for line in lines]
    if not set(map(len, merges)) <= {2}:
        index = next(i for i, parts in enumerate(merges) if len(parts) != 2)
        message = f"is {shown(lines[index])}, not two parts with a space between"
        raise metadata.fault(f"{key}[{index}]", message)
    try:
        model = build_bpe(normal, merges, added, ignore_merges=family.whole_words)
    except MergeFault as fault:
        raise metadata.fault(f"{key}[{fault.index}]", fault.reason) from fault
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer_of(family)
    return plain_encoder(tokenizer)
