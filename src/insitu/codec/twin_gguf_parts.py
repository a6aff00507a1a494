"""What of a GGUF file's tokenizer keys belongs to one kind of vocabulary: one function a kind.

Not here: types of tokens, ids by name, templates (``twin_gguf``).

Always true: what a GGUF file has no key for is refused by its name in the folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.codec.gguf_encoders import METASPACE, NFC, NORMALIZER
from insitu.codec.gguf_tokens import KEY
from insitu.codec.piece_merger import SPACE
from insitu.codec.piece_merges import NoMergesFault, scores_of
from insitu.codec.pretokenizers import FAMILIES, Family
from insitu.codec.tokenizer_parts import is_byte_level
from insitu.codec.twin_folder_parts import pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.piece_merges import Merge
    from insitu.codec.tokenizer_steps import TokenizerFile
    from insitu.codec.vocabulary import Vocabulary

_DIGIT, _DIGITS = r"\p{N}", r"\p{N}+"
_GPT2 = FAMILIES["gpt-2"].splits[0]
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_ALL_BYTES = 256


def values_of(file: TokenizerFile, known: Vocabulary, num_rows: int) -> dict[str, Any]:
    """Whole keys, for so many tokens."""
    kind = _kind(file)
    build = _KINDS.get(kind)
    if build is None:
        raise file.unsupported("model.type", f"{kind}, in a GGUF file,")
    return build(file, known, num_rows)


def unknown_of(file: TokenizerFile, known: Vocabulary) -> str | None:
    """The token of what has no piece, in kinds that have one."""
    return None if _kind(file) == "ByteLevel" else known.special_texts.get("unk_token")


def _kind(file: TokenizerFile) -> str:
    return "ByteLevel" if is_byte_level(file) else str(file.model_kind())


# --- byte-level ----------------------------------------------------------------------------------


def _byte_level(file: TokenizerFile, _: Vocabulary, __: int) -> dict[str, Any]:
    normalizers = file.known_steps("normalizer", "normalizers", frozenset({NFC}))
    values = {"model": "gpt2", "pre": _pre(file), "merges": list(map(" ".join, _merges(file)))}
    return {**_keyed(values), **({NORMALIZER: NFC} if normalizers else {})}


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


# --- SentencePiece -------------------------------------------------------------------------------


def _sentencepiece(file: TokenizerFile, known: Vocabulary, num_rows: int) -> dict[str, Any]:
    model = file.values["model"]
    if model.get("ignore_merges"):
        raise file.unsupported("model.ignore_merges", True)
    if not model.get("unk_token") and len(known.byte_of) < _ALL_BYTES:
        raise file.fault("model.unk_token", "is missing: text without a token would vanish")
    pieces = pieces_of(known)
    listed = [merge for merge in _merges(file) if merge[0] + merge[1] in pieces]
    try:
        by_piece = scores_of(pieces, [m for m in listed if m[0] in pieces and m[1] in pieces])
    except NoMergesFault as fault:
        raise file.fault("model.merges", f"are not those of any scores: {fault}") from fault
    scores = [0.0] * num_rows
    for piece, score in by_piece.items():
        scores[pieces[piece]] = score
    values = {"model": "llama", "pre": "default", "scores": scores}
    return {**_keyed(values), **_space_before(file, known)}


def _unigram(file: TokenizerFile, known: Vocabulary, num_rows: int) -> dict[str, Any]:
    model = file.values["model"]
    if model.get("byte_fallback") and len(known.byte_of) < _ALL_BYTES:
        raise file.unsupported("model.byte_fallback", "without tokens of all bytes, true")
    told = [float(score) for _, score in model["vocab"]]
    if max(map(abs, told)) > float(np.finfo(np.float32).max):
        raise file.fault("model.vocab", "has a score beyond float32")
    scores = np.zeros(num_rows, np.float32)
    scores[: len(told)] = told
    values = {"model": "t5", "scores": scores.tolist(), "unknown_token_id": model["unk_id"]}
    return {**_keyed(values), **_space_before(file, known)}


def _space_before(file: TokenizerFile, known: Vocabulary) -> dict[str, Any]:
    scheme = _metaspace(file, known)
    values = _keyed({"add_space_prefix": known.dummy_space != "never"})
    return values | ({METASPACE: scheme} if scheme else {})


def _metaspace(file: TokenizerFile, known: Vocabulary) -> str | None:
    """How Metaspace puts a space before a text, where it is what does; no other step is there."""
    normalizers = file.steps("normalizer", "normalizers")
    cuts = file.steps("pre_tokenizer", "pretokenizers")
    is_split = bool(cuts) and _is_idle(cuts[0])
    if normalizers and normalizers[-1] == _REPLACE and len(cuts) == is_split:
        before = [
            step for step in normalizers[:-1] if step != {"type": "Prepend", "prepend": SPACE}
        ]
        if not before:
            return None
    if normalizers or len(cuts) != 1 or cuts[0].get("type") != "Metaspace":
        where = "normalizer" if normalizers else "pre_tokenizer"
        raise file.unsupported(where, "another way to mark words than SentencePiece's")
    if cuts[0].get("replacement", SPACE) != SPACE:
        raise file.unsupported("pre_tokenizer.replacement", cuts[0]["replacement"])
    crossing = (piece for piece in pieces_of(known) if SPACE in piece.lstrip(SPACE))
    if cuts[0].get("split", True) and (piece := next(crossing, None)) is not None:
        raise file.unsupported("pre_tokenizer.split", f"true, beside {piece!a} of two words,")
    return None if known.dummy_space == "never" else known.dummy_space


def _is_idle(step: dict[str, Any]) -> bool:
    """Whether it looks for spaces, of which none is left."""
    return step.get("type") == "Split" and step.get("pattern") == {"String": " "}


def _merges(file: TokenizerFile) -> list[Merge]:
    lines = file.values["model"].get("merges")
    both = [line.split(" ") if isinstance(line, str) else line for line in lines]
    return [(left, right) for left, right in both]


def _keyed(values: dict[str, Any]) -> dict[str, Any]:
    return {KEY + name: value for name, value in values.items()}


_KINDS: dict[str, Callable[[TokenizerFile, Vocabulary, int], dict[str, Any]]] = {
    "ByteLevel": _byte_level,
    "BPE": _sentencepiece,
    "Unigram": _unigram,
}
