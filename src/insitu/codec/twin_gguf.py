"""A folder's vocabulary and templates as a GGUF file's keys would hold them.

Not here: what belongs to one kind of vocabulary (``twin_gguf_parts``), the way back
(``twin_folder``), or checking that both encode alike (``quantize/convert``).

Always true: what a GGUF file has no key for is refused by its name in the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.gguf_tokens import KEY
from insitu.codec.gguf_vocabulary import LSTRIP, RSTRIP
from insitu.codec.template_files import DEFAULT, read_texts
from insitu.codec.tokenizer_steps import FILE, TokenizerFile
from insitu.codec.twin_gguf_parts import unknown_of, values_of
from insitu.codec.vocabulary import TokenType
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

_NAMES = {
    "bos_token": "bos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_values(source: TensorSource, known: Vocabulary, num_rows: int) -> dict[str, Any]:
    """Keys of the tokenizer, for a token for each of the embedding's rows."""
    file = TokenizerFile(source.path, parse_object(source.path, FILE, source.file(FILE) or b""))
    num_tokens = max(num_rows, len(known.pieces))
    padding = [f"[PAD{i}]" for i in range(len(known.pieces), num_tokens)]
    pieces = [piece or f"[PAD{i}]" for i, piece in enumerate(known.pieces)]
    values = {
        "tokens": [*pieces, *padding],
        "token_type": [*_types(file, known), *[TokenType.UNUSED.value] * len(padding)],
        **_named(file, known),
        "add_bos_token": bool(known.prefix_ids),
        "add_eos_token": bool(known.suffix_ids),
    }
    own = {**values_of(file, known, num_tokens), **_flags(known)}
    return {**own, **{KEY + name: value for name, value in values.items()}, **_templates(source)}


def _types(file: TokenizerFile, known: Vocabulary) -> list[int]:
    whole = {**known.added, **known.texts}
    kinds = dict.fromkeys(whole.values(), TokenType.USER_DEFINED)
    kinds |= dict.fromkeys(known.control_ids, TokenType.CONTROL)
    kinds |= dict.fromkeys(known.byte_of, TokenType.BYTE)
    kinds |= dict.fromkeys(known.padding_ids, TokenType.UNUSED)
    unknown = unknown_of(file, known)
    if unknown in whole:
        kinds[whole[unknown]] = TokenType.UNKNOWN
    normal = TokenType.NORMAL
    return [kinds.get(token_id, normal).value for token_id in range(len(known.pieces))]


def _flags(known: Vocabulary) -> dict[str, list[int]]:
    """Markers that take the white space beside them."""
    whole = {**known.added, **known.texts}
    eaters = {LSTRIP: known.eats_before, RSTRIP: known.eats_after}
    return {key: sorted(whole[text] for text in texts) for key, texts in eaters.items() if texts}


def _named(file: TokenizerFile, known: Vocabulary) -> dict[str, int]:
    """Ids that GGUF names; those that end a text first the one the tokenizer calls so."""
    ids = {piece: i for i, piece in enumerate(known.pieces) if piece}
    texts = known.special_texts
    named = {key: ids[texts[name]] for name, key in _NAMES.items() if texts.get(name) in ids}
    if known.prefix_ids:
        named["bos_token_id"] = known.prefix_ids[0]
    eos = ids.get(texts.get("eos_token", ""))
    ends = sorted(known.end_ids, key=lambda token_id: (token_id != eos, token_id))
    if len(ends) > len(_END_KEYS):
        raise file.fault("eos_token_id", f"names {len(ends)} ids; a GGUF file has keys for three")
    # A key for each: without one, the reader looks for what usually ends a turn.
    ends += ends[:1] * (2 - len(ends))
    return {**named, **dict(zip(_END_KEYS, ends, strict=False))}


def _templates(source: TensorSource) -> dict[str, Any]:
    texts = {name: text for name, (_, text) in read_texts(source).items()}
    key = "tokenizer.chat_template"
    values: dict[str, Any] = {key: texts.pop(DEFAULT)} if DEFAULT in texts else {}
    if texts:
        values["tokenizer.chat_templates"] = list(texts)
        values |= {f"{key}.{name}": text for name, text in texts.items()}
    return values
