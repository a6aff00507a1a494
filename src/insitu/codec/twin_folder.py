"""A GGUF file's vocabulary, templates and sampling values as a folder's files would hold them.

Not here: what belongs to one kind of vocabulary (``twin_folder_parts``), the way back
(``twin_gguf``), or checking that both encode alike (``quantize/convert``).

Always true: what a folder has no words for is refused with its key.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.codec.template_files import DEFAULT, read_texts
from insitu.codec.tokenizer_steps import FILE
from insitu.codec.twin_folder_parts import parts_of, unknown_id

if TYPE_CHECKING:
    from insitu.codec.vocabulary import Vocabulary
    from insitu.weights.tensors import TensorSource


def folder_files(source: TensorSource, known: Vocabulary) -> dict[str, bytes]:
    """tokenizer.json and tokenizer_config.json."""
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
        FILE: _json(_tokenizer(source, known), indent=None),
        "tokenizer_config.json": _json(told, indent=1),
    }


def _tokenizer(source: TensorSource, known: Vocabulary) -> dict[str, Any]:
    parts = parts_of(source, known)
    unknown = unknown_id(source, known)
    more = {} if unknown is None else {known.pieces[unknown]: unknown}
    whole = {**known.added, **known.texts, **more}
    special = known.control_ids.union(more.values())
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {**_added(known, text, i), "special": i in special}
            for text, i in sorted(whole.items(), key=_id)
        ],
        **parts,
        "post_processor": _around(known) or parts["post_processor"],
    }


def _id(entry: tuple[str, int]) -> int:
    return entry[1]


def _added(known: Vocabulary, text: str, token_id: int) -> dict[str, Any]:
    return {
        "id": token_id,
        "content": text,
        "single_word": False,
        "lstrip": text in known.eats_before,
        "rstrip": text in known.eats_after,
        "normalized": False,
    }


def _around(known: Vocabulary) -> dict[str, Any] | None:
    """What is put around a text."""
    if not known.prefix_ids and not known.suffix_ids:
        return None
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


def _json(value: Any, indent: int | None) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return f"{text}\n".encode(errors="surrogatepass")
