"""The vocabulary that GGUF metadata describes.

Not here: GGUF's bytes (``weights``), how each kind of vocabulary encodes (``gguf_encoders``).

Always true: a fault names the key it lies in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.codec.gguf_encoders import KINDS
from insitu.codec.gguf_tokens import KEY, GGUFTokens, named_ids, spellings, types_of
from insitu.codec.pieces import Pieces
from insitu.codec.vocabulary import TokenType, Vocabulary, texts_among
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.codec.gguf_encoders import Encoder
    from insitu.weights.metadata import Metadata

_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# What ends a turn, for files that name no ``eot_token_id``.
_TURN_ENDS = frozenset(
    {
        "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "[EOT]",
        "<|return|>", "<|call|>", "<|END_OF_TURN_TOKEN|>", "<end_of_utterance>",
    }
)  # fmt: skip
_TEXT_KEYS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
# Our own keys: ids of markers that take the white space before them, and after.
LSTRIP, RSTRIP = "insitu.tokenizer.lstrip", "insitu.tokenizer.rstrip"
_NAME_KEYS = (*_END_KEYS, *_TEXT_KEYS.values())


def read_vocabulary(path: Path, metadata: Metadata) -> Vocabulary:
    """The vocabulary of a GGUF file."""
    model: str = metadata.string(KEY + "model")
    kind = KINDS.get(model)
    if kind is None:
        known = ", ".join(map(repr, KINDS))
        message = f"tokenizer model {shown(model)} is not supported; supported: {known}"
        raise UnsupportedModelError(path, f"key {KEY}model", message)
    pieces: list[str] = metadata.strings(KEY + "tokens")
    if not pieces:
        raise metadata.fault(KEY + "tokens", "is empty")
    named = {**kind.default_ids(len(pieces)), **named_ids(metadata, _NAME_KEYS, len(pieces))}
    types = types_of(metadata, len(pieces), named, kind.token_types)
    tokens = GGUFTokens(path, metadata, pieces, types, named)
    encoder = kind.build(tokens)
    return _vocabulary(tokens, encoder)


def _vocabulary(tokens: GGUFTokens, encoder: Encoder) -> Vocabulary:
    pieces, named = tokens.pieces, tokens.named
    texts, added = _whole(tokens)
    prefix_ids, suffix_ids = _around(tokens, encoder)
    control_ids = frozenset(tokens.of(TokenType.CONTROL))
    return Vocabulary(
        pieces=Pieces(pieces),
        added=added,
        texts=texts,
        control_ids=control_ids,
        padding_ids=frozenset([*tokens.of(TokenType.UNUSED), *tokens.of(TokenType.UNKNOWN)]),
        end_ids=_end_ids(tokens, added, control_ids),
        encode_plain=encoder.encode_plain,
        spell=encoder.spell,
        byte_of=tokens.byte_of,
        eats_before=_flagged(tokens, LSTRIP) or frozenset(),
        eats_after=_eats_after(tokens, added),
        missing_bytes=encoder.missing_bytes,
        prefix_ids=prefix_ids,
        suffix_ids=suffix_ids,
        dummy_space=encoder.dummy_space,
        is_normalized=encoder.is_normalized,
        is_lossy=encoder.is_lossy,
        special_texts={
            name: pieces[named[key]] for name, key in _TEXT_KEYS.items() if key in named
        },
    )


def _whole(tokens: GGUFTokens) -> tuple[dict[str, int], dict[str, int]]:
    """Tokens matched as a whole: in anybody's text, and in the template's alone."""
    whole = spellings(tokens, [*tokens.of(TokenType.CONTROL), *tokens.of(TokenType.USER_DEFINED)])
    user_defined = [tokens.pieces[token_id] for token_id in tokens.of(TokenType.USER_DEFINED)]
    in_text = texts_among(user_defined)
    texts = {token: whole[token] for token in in_text}
    return texts, {token: i for token, i in whole.items() if token not in in_text}


def _end_ids(
    tokens: GGUFTokens, added: dict[str, int], control_ids: frozenset[int]
) -> frozenset[int]:
    ends = {tokens.named[key] for key in _END_KEYS if key in tokens.named}
    if "eot_token_id" not in tokens.named:
        # Where a message ends with <|return|> or <|call|>, <|end|> only ends a part of it.
        parts = {"<|end|>"} if "<|return|>" in added else set()
        turn_ends = {added[token] for token in _TURN_ENDS - parts if token in added}
        ends |= turn_ends & control_ids
    return frozenset(ends)


def _eats_after(tokens: GGUFTokens, added: dict[str, int]) -> frozenset[str]:
    """Phi-3's markers take the line end that follows; GGUF has no key that says so but ours."""
    flagged = _flagged(tokens, RSTRIP)
    if flagged is not None:
        return flagged
    architecture = tokens.metadata.string("general.architecture", "")
    name = tokens.metadata.string("general.name", "")
    if architecture != "phi3" and not name.lower().startswith(("phi3", "phi-3")):
        return frozenset()
    return frozenset(added) - {"<unk>", "<s>", "<|endoftext|>"}


def _flagged(tokens: GGUFTokens, key: str) -> frozenset[str] | None:
    """Markers that one of our own keys lists, if the file has it."""
    ids = tokens.metadata.integers(key, None, minimum=0, maximum=len(tokens.pieces) - 1)
    if ids is None:
        return None
    whole = {*tokens.of(TokenType.CONTROL), *tokens.of(TokenType.USER_DEFINED)}
    for index, token_id in enumerate(ids):
        if token_id not in whole:
            message = f"is {token_id}, which is no token that is matched as a whole"
            raise tokens.metadata.fault(f"{key}[{index}]", message)
    return frozenset(map(tokens.pieces.__getitem__, ids))


def _around(tokens: GGUFTokens, encoder: Encoder) -> tuple[tuple[int, ...], tuple[int, ...]]:
    around = []
    for flag, key, default in (
        ("add_bos_token", encoder.begin_key, encoder.adds_begin),
        ("add_eos_token", encoder.end_key, encoder.adds_end),
    ):
        is_wanted = tokens.metadata.boolean(KEY + flag, None)
        if is_wanted and key not in tokens.named:
            raise tokens.metadata.fault(KEY + flag, f"is true, but {KEY}{key} is missing")
        is_wanted = default if is_wanted is None else is_wanted
        around.append((tokens.named[key],) if is_wanted and key in tokens.named else ())
    return around[0], around[1]
