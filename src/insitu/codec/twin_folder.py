"""A GGUF file's vocabulary, templates and sampling values as a folder's files would hold them.

Byte-level vocabularies alone: SentencePiece's merge by scores, which tokenizer.json has no place
for. Not here: the way back (``twin_gguf``), or checking that both encode alike (``twins``).

Always true: what a folder has no words for is refused with its key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.codec.gguf_encoders import NFC
from insitu.codec.gguf_tokens import KEY
from insitu.codec.pretokenizers import FAMILIES
from insitu.codec.template_files import DEFAULT, read_texts
from insitu.codec.tokenizer_parts import FILE
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource

BYTE_LEVEL = "gpt2"


def folder_files(source: TensorSource, known: Vocabulary) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
    _require_byte_level(source)
    texts = {name: text for name, (_, text) in read_texts(source).items()}
    template: Any = texts.get(DEFAULT)
    if set(texts) - {DEFAULT}:
        template = [{"name": name, "template": text} for name, text in texts.items()]
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(known.prefix_ids),
        "add_eos_token": bool(known.suffix_ids),
        **known.special_texts,
        **({} if template is None else {"chat_template": template}),
    }
    return {
        FILE: _json(_tokenizer(source, known)),
        "tokenizer_config.json": _json(told),
    }


def _require_byte_level(source: TensorSource) -> None:
    keys = source.metadata
    model = keys.string(KEY + "model")
    if model != BYTE_LEVEL:
        message = f"{shown(model)} is not written as tokenizer.json, only byte-level vocabularies"
        raise UnsupportedModelError(source.path, f"key {KEY}model", message)
    pre = keys.string(KEY + "pre", "default")
    if FAMILIES[pre].threes:
        message = f"{shown(pre)} cuts numbers from their end, as no tokenizer.json does here"
        raise UnsupportedModelError(source.path, f"key {KEY}pre", message)


def _tokenizer(source: TensorSource, known: Vocabulary) -> dict[str, Any]:
    family = FAMILIES[source.metadata.string(KEY + "pre", "default")]
    whole = {**known.added, **known.texts}
    cuts: list[dict[str, Any]] = [
        {
            "type": "Split",
            "pattern": {"Regex": split},
            "behavior": "Isolated",
            "invert": False,
        }
        for split in family.splits
    ]
    cuts.append(_byte_level(use_regex=False))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(known, text, i) for text, i in sorted(whole.items(), key=_id)],
        "normalizer": {"type": NFC} if known.is_normalized else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "post_processor": _around(known),
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": family.whole_words,
            # Added tokens too: the library gives others than these new ids.
            "vocab": {
                piece: i for i, piece in enumerate(known.pieces) if i not in known.padding_ids
            },
            "merges": [line.split(" ") for line in source.metadata.each_string(KEY + "merges")],
        },
    }


def _id(entry: tuple[str, int]) -> int:
    return entry[1]


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    settings = {"add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "ByteLevel", **settings}


def _added(known: Vocabulary, text: str, token_id: int) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": text in known.eats_before,
        "rstrip": text in known.eats_after,
        "normalized": False,
        "special": token_id in known.control_ids,
    }


def _around(known: Vocabulary) -> dict[str, Any]:
    """What is put around a text."""
    if not known.prefix_ids and not known.suffix_ids:
        return _byte_level(use_regex=True)
    pieces = known.pieces
    parts: list[dict[str, Any]] = [
        *({"SpecialToken": {"id": pieces[i], "type_id": 0}} for i in known.prefix_ids),
        {"Sequence": {"id": "A", "type_id": 0}},
        *({"SpecialToken": {"id": pieces[i], "type_id": 0}} for i in known.suffix_ids),
    ]
    tokens = {
        pieces[i]: {"id": pieces[i], "ids": [i], "tokens": [pieces[i]]}
        for i in (*known.prefix_ids, *known.suffix_ids)
    }
    return {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": tokens,
    }


def _json(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode(errors="surrogatepass")
