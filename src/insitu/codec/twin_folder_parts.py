"""What of a tokenizer.json belongs to one kind of GGUF vocabulary: one function a kind.

Not here: added tokens, what goes around a text, other files (``twin_folder``).

Always true: what a tokenizer.json has no words for is refused with its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.gguf_encoders import METASPACE, NFC
from insitu.codec.gguf_tokens import KEY
from insitu.codec.piece_merger import SPACE
from insitu.codec.piece_merges import NoMergesFault, merges_of
from insitu.codec.pretokenizers import FAMILIES
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

# normalizer, pre_tokenizer, post_processor (where nothing goes around a text), decoder, model.
Parts = dict[str, Any]
_MODEL = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}
_ALL_BYTES = 256
_MERGES_BLANKS = "remove_extra_whitespaces"


def parts_of(source: TensorSource, known: Vocabulary) -> Parts:
    """Those of a GGUF file's kind."""
    model: str = source.metadata.string(KEY + "model")
    build = _KINDS.get(model)
    if build is None:
        kinds = ", ".join(map(repr, _KINDS))
        message = f"{shown(model)} is not written as tokenizer.json; written are {kinds}"
        raise UnsupportedModelError(source.path, f"key {KEY}model", message)
    return build(source, known)


def unknown_id(source: TensorSource, known: Vocabulary) -> int | None:
    """The token of what has no piece, in kinds that have one: matched as a whole in a folder."""
    if source.metadata.string(KEY + "model") == "gpt2":
        return None
    text = known.special_texts.get("unk_token")
    ids = known.padding_ids | known.control_ids
    return next((token_id for token_id in ids if known.pieces[token_id] == text), None)


def _byte_level(source: TensorSource, known: Vocabulary) -> Parts:
    pre = source.metadata.string(KEY + "pre", "default")
    family = FAMILIES[pre]
    if family.threes:
        message = f"{shown(pre)} cuts numbers from their end, as no tokenizer.json does here"
        raise UnsupportedModelError(source.path, f"key {KEY}pre", message)
    cuts: list[Parts] = [
        {
            "type": "Split",
            "pattern": {"Regex": split},
            "behavior": "Isolated",
            "invert": False,
        }
        for split in family.splits
    ]
    cuts.append(_byte_step(use_regex=False))
    merges = source.metadata.each_string(KEY + "merges")
    return {
        "normalizer": {"type": NFC} if known.is_normalized else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": _byte_step(use_regex=True),
        "decoder": _byte_step(use_regex=True),
        "model": {
            **_MODEL,
            "ignore_merges": family.whole_words,
            "vocab": _vocab(known, None),
            "merges": [line.split(" ") for line in merges],
        },
    }


def _byte_step(*, use_regex: bool) -> Parts:
    settings = {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **settings}


def _sentencepiece(source: TensorSource, known: Vocabulary) -> Parts:
    unknown = unknown_id(source, known)
    if unknown is None and len(set(known.byte_of.values())) < _ALL_BYTES:
        message = "is missing, and so are tokens of some bytes: a folder's text could vanish"
        raise UnsupportedModelError(source.path, f"key {KEY}unknown_token_id", message)
    scores = source.metadata.numbers(KEY + "scores")
    try:
        merges = merges_of(pieces_of(known), scores)
    except NoMergesFault as fault:
        raise UnsupportedModelError(source.path, f"key {KEY}tokens", str(fault)) from fault
    model = {
        **_MODEL,
        "unk_token": None if unknown is None else known.pieces[unknown],
        "fuse_unk": True,
        "byte_fallback": bool(known.byte_of),
        "vocab": _vocab(known, unknown),
        "merges": merges,
    }
    return {**_around_words(source, known), "model": model}


def _unigram(source: TensorSource, known: Vocabulary) -> Parts:
    keys = source.metadata
    if keys.has(KEY + "precompiled_charsmap") or keys.boolean(KEY + _MERGES_BLANKS, False):
        key = KEY + (_MERGES_BLANKS if keys.has(KEY + _MERGES_BLANKS) else "precompiled_charsmap")
        message = "is not written as tokenizer.json: texts are normalised otherwise there"
        raise UnsupportedModelError(source.path, f"key {key}", message)
    unknown, scores = unknown_id(source, known), keys.numbers(KEY + "scores")
    if unknown is None:
        message = "is a token of text; a folder's stands for nothing else"
        raise UnsupportedModelError(source.path, f"key {KEY}unknown_token_id", message)
    nothing = known.padding_ids - {unknown}
    size = max(i for i in range(len(known.pieces)) if i not in nothing) + 1
    if min(nothing, default=size) < size:  # ids are places in a list
        message = "stands for nothing, and comes before one that does"
        raise UnsupportedModelError(source.path, f"key {KEY}tokens[{min(nothing)}]", message)
    has_bytes = len(set(known.byte_of.values())) == _ALL_BYTES
    listed = [[known.pieces[i], scores[i]] for i in range(size)]
    model = {"type": "Unigram", "unk_id": unknown, "vocab": listed, "byte_fallback": has_bytes}
    return {**_around_words(source, known), "model": model}


def _around_words(source: TensorSource, known: Vocabulary) -> Parts:
    """All but the model, of vocabularies with word marks."""
    for token_id, byte in known.byte_of.items():
        if known.pieces[token_id] != f"<0x{byte:02X}>":
            message = f"is {shown(known.pieces[token_id])}, in a folder <0x{byte:02X}>"
            raise UnsupportedModelError(source.path, f"key {KEY}tokens[{token_id}]", message)
    begins = known.dummy_space != "never"
    last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * begins
    steps = [_replaced(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, *last]
    return {
        **_marked(source, known),
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": steps},
    }


def _marked(source: TensorSource, known: Vocabulary) -> Parts:
    """How spaces become word marks, one of them put before a text."""
    scheme = source.metadata.string(METASPACE, "")
    if scheme:
        cut = {"replacement": SPACE, "prepend_scheme": scheme, "split": False}
        return {"normalizer": None, "pre_tokenizer": {"type": "Metaspace", **cut}}
    steps: list[Parts] = [_replaced(" ", SPACE)]
    if known.dummy_space != "never":
        steps.insert(0, {"type": "Prepend", "prepend": SPACE})
    return {"normalizer": {"type": "Sequence", "normalizers": steps}, "pre_tokenizer": None}


def _replaced(pattern: str, content: str) -> Parts:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def _vocab(known: Vocabulary, unknown: int | None) -> dict[str, int]:
    """Added tokens too: the library gives others than these new ids."""
    left_out = known.padding_ids - {unknown}
    return {piece: i for i, piece in enumerate(known.pieces) if i not in left_out}


def pieces_of(known: Vocabulary) -> dict[str, int]:
    """What text without markers becomes: neither bytes' tokens, nor such as stand for nothing."""
    others = {*known.added.values(), *known.texts.values(), *known.byte_of, *known.padding_ids}
    return {piece: i for i, piece in enumerate(known.pieces) if i not in others}


_KINDS: dict[str, Callable[[TensorSource, Vocabulary], Parts]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    "t5": _unigram,
}
