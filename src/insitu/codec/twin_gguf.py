"""A folder's vocabulary and templates as a GGUF file's keys would hold them.

Byte-level vocabularies alone, and of them those whose way to cut words has a name in GGUF files.
Not here: the way back (``twin_folder``), or checking that both encode alike (``twins``).

Always true: what a GGUF file has no key for is refused by its name in the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.gguf_encoders import NFC, NORMALIZER
from insitu.codec.gguf_tokens import KEY
from insitu.codec.pretokenizers import FAMILIES, Family
from insitu.codec.template_files import DEFAULT, read_texts
from insitu.codec.tokenizer_parts import FILE, TokenizerFile
from insitu.codec.twin_folder import BYTE_LEVEL
from insitu.codec.vocabulary import TokenType
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

_DIGIT, _DIGITS = r"\p{N}", r"\p{N}+"
_GPT2 = FAMILIES["gpt-2"].splits[0]
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
    normalizers = file.known_steps("normalizer", "normalizers", frozenset({NFC}))
    padding = [f"[PAD{i}]" for i in range(len(known.pieces), num_rows)]
    pieces = [piece or f"[PAD{i}]" for i, piece in enumerate(known.pieces)]
    merges = file.values["model"].get("merges")
    values = {
        "model": BYTE_LEVEL,
        "pre": _pre(file),
        "tokens": [*pieces, *padding],
        "token_type": [*_types(known), *[TokenType.UNUSED.value] * len(padding)],
        "merges": [line if isinstance(line, str) else " ".join(line) for line in merges],
        **_named(file, known),
        "add_bos_token": bool(known.prefix_ids),
        "add_eos_token": bool(known.suffix_ids),
    }
    own = {NORMALIZER: NFC} if normalizers else {}
    return {**{KEY + name: value for name, value in values.items()}, **own, **_templates(source)}


def _types(known: Vocabulary) -> list[int]:
    user_defined = frozenset((*known.added.values(), *known.texts.values())) - known.control_ids

    def kind(token_id: int) -> TokenType:
        if token_id in known.padding_ids:
            return TokenType.UNUSED
        if token_id in known.control_ids:
            return TokenType.CONTROL
        return TokenType.USER_DEFINED if token_id in user_defined else TokenType.NORMAL

    return [kind(token_id).value for token_id in range(len(known.pieces))]


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


def _pre(file: TokenizerFile) -> str:
    """The name of the way in which words are cut."""
    steps = file.steps("pre_tokenizer", "pretokenizers")
    splits = [split for step in steps if (split := _split(file, step))]
    wanted = Family(tuple(splits), whole_words=bool(file.values["model"].get("ignore_merges")))
    for name, family in FAMILIES.items():
        if (family.splits, family.whole_words, family.threes) == (
            wanted.splits,
            wanted.whole_words,
            "",
        ):
            return name
    raise file.unsupported("pre_tokenizer", "a way to cut words that has no name in GGUF files")


def _split(file: TokenizerFile, step: dict[str, Any]) -> str | None:
    """The expression of one step; None where it cuts nothing."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return _GPT2 if step.get("use_regex", True) else None
    if kind == "Digits":
        return _DIGIT if step.get("individual_digits") else _DIGITS
    pattern = step.get("pattern")
    is_plain = step.get("behavior") == "Isolated" and not step.get("invert")
    if kind == "Split" and is_plain and isinstance(pattern, dict) and "Regex" in pattern:
        return str(pattern["Regex"])
    raise file.unsupported("pre_tokenizer.type", kind)


def _templates(source: TensorSource) -> dict[str, Any]:
    texts = {name: text for name, (_, text) in read_texts(source).items()}
    key = "tokenizer.chat_template"
    values: dict[str, Any] = {key: texts.pop(DEFAULT)} if DEFAULT in texts else {}
    if texts:
        values["tokenizer.chat_templates"] = list(texts)
        values |= {f"{key}.{name}": text for name, text in texts.items()}
    return values
