"""A model as the other format would hold it, vocabulary, templates and sampling values with it.

Not here: numbers and tensors (``models/twins``), the vocabulary's files (``codec``), or writing.

Always true: the twin's vocabulary, read back, is the original's, and cuts a sample text alike; what
would be lost is refused by name.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from insitu.codec.gguf_tokens import KEY
from insitu.codec.tokenizer import Tokenizer, read_vocabulary
from insitu.codec.tokenizer_steps import FILE
from insitu.codec.twin_folder import folder_files
from insitu.codec.twin_gguf import gguf_values
from insitu.codec.vocabulary import Vocabulary
from insitu.evaluate.text import SAMPLE, read_text
from insitu.models.sampling_defaults import (
    FILE as GENERATION,
)
from insitu.models.sampling_defaults import GGUF_NAMES, GGUF_PREFIX, read_sampling_defaults
from insitu.models.twins import TwinSource, twin_of
from insitu.quantize.errors import QuantizeError
from insitu.refusal import Refusal
from insitu.weights.errors import UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.models.twins import Format
    from insitu.weights.tensors import TensorSource

# Other ways to keep a vocabulary, which a tokenizer.json is not made from here.
_OTHER_VOCABULARIES = ("tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
# Each is another function of the text, and what it makes of one is compared.
_NOT_COMPARED = frozenset({"encode_plain", "spell", "pieces", "padding_ids"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_MOST_PIECES = 3_000
_HARD = (
    "\n\n  123456 don't WE'LL e\u0301 \u00e9 日本語 \U0001f469\u200d\U0001f4bb\t\r\n ¿x? <|x|>",
    " lead  two   "
    + " " * 40
    + "=" * 70
    + "a" * 50
    + "ab" * 9
    + "\t" * 9
    + "\u3000" * 5
    + "\u2581 ",
)


def converted(source: TensorSource, form: Format) -> TwinSource:
    """The same model in that format."""
    try:
        return _converted(source, form)
    except UnsupportedModelError as refused:
        kept = "a GGUF file" if source.format == "gguf" else "a folder of safetensors"
        message = f"{refused.message} ({kept} keeps it)"
        raise UnsupportedModelError(refused.path, refused.where, message) from refused


def _converted(source: TensorSource, form: Format) -> TwinSource:
    twin = twin_of(source, form)
    sampling = _sampling(source)
    known = read_vocabulary(source) if _has_vocabulary(source) else None
    if known is not None and form == "gguf":
        num_rows = twin.tensors["token_embd.weight"].shape[0]
        twin.values |= gguf_values(source, known, num_rows)
    elif known is not None:
        twin.files |= folder_files(source, known)
        sampling = {"eos_token_id": sorted(known.end_ids), **sampling}
    if form == "gguf":
        twin.values["general.name"] = source.path.resolve().name
        twin.values |= {GGUF_PREFIX + GGUF_NAMES.get(k, k): x for k, x in sampling.items()}
        _require_unicode(source, twin.values)
    elif sampling:
        twin.files[GENERATION] = (json.dumps(sampling, indent=2) + "\n").encode()
    if known is not None:
        _require_same(source, known, read_vocabulary(twin))
    return twin


def _require_unicode(source: TensorSource, values: Mapping[str, Any]) -> None:
    """JSON can spell half a character, a GGUF file's text cannot."""
    for key, value in values.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
                raise UnsupportedModelError(source.path, key, f"{shown(text)} is no Unicode text")


def _has_vocabulary(source: TensorSource) -> bool:
    if source.format == "gguf":
        return source.metadata.has(KEY + "model")
    other = next((name for name in _OTHER_VOCABULARIES if source.file(name) is not None), None)
    has_file = source.file(FILE) is not None
    if other is not None and not has_file:
        raise UnsupportedModelError(source.path, other, f"is there without a {FILE}")
    return has_file


def _sampling(source: TensorSource) -> dict[str, Any]:
    """Values for what a request leaves out; what is asked for beyond them is refused."""
    defaults = read_sampling_defaults(source)
    refused = [note for note in defaults.notes if "do_sample" not in note]
    if refused:
        raise QuantizeError(f"{source.path}: {refused[0]}")
    values: dict[str, Any] = dict(defaults.values)
    if values and source.format == "gguf":
        values["do_sample"] = True
    return values


def _require_same(source: TensorSource, own: Vocabulary, twin: Vocabulary) -> None:
    own, twin = _without_unknown(own, twin), _without_unknown(twin, own)
    twin = replace(twin, special_texts=_without_defaults(own, twin))
    for name in (field.name for field in fields(Vocabulary) if field.name not in _NOT_COMPARED):
        if getattr(own, name) != getattr(twin, name):
            raise _lost(source, f"{name}: {_part(own, twin, name)}")
    spelled = [i for i in range(len(own.pieces)) if i not in own.padding_ids]
    if any(own.pieces[i] != twin.pieces[i] for i in spelled):
        raise _lost(source, "the tokens' spellings")
    first, second = Tokenizer(own), Tokenizer(twin)
    whole = "".join(sorted([*own.added, *own.texts]))
    for text in (read_text(SAMPLE), *_HARD, whole, _spelled(own, first)):
        for parse_special in (False, True):
            if _ids(first, text, parse_special) != _ids(second, text, parse_special):
                raise _lost(source, "how text becomes tokens")


def _without_unknown(own: Vocabulary, other: Vocabulary) -> Vocabulary:
    """Without a marker that stands for nothing in the other: GGUF has a type for <unk>."""
    token_id = own.added.get(own.special_texts.get("unk_token", ""))
    if token_id not in other.padding_ids:
        return own
    added = {text: i for text, i in own.added.items() if i != token_id}
    return replace(own, added=added, control_ids=own.control_ids - {token_id})


def _without_defaults(own: Vocabulary, twin: Vocabulary) -> dict[str, str]:
    """Names of tokens; some have an id in GGUF's kinds of vocabulary whether it is given or not."""
    defaults = {"unk_token", "pad_token"} - own.special_texts.keys()
    return {name: text for name, text in twin.special_texts.items() if name not in defaults}


def _spelled(own: Vocabulary, tokenizer: Tokenizer) -> str:
    """A text of the vocabulary's own pieces, from all parts of it."""
    skipped = own.padding_ids | own.control_ids
    ids = range(0, len(own.pieces), -(-len(own.pieces) // _MOST_PIECES))
    return "".join(tokenizer.token_text(i) for i in ids if i not in skipped)


def _ids(tokenizer: Tokenizer, text: str, parse_special: bool) -> list[int] | str:
    """Ids, or why there are none."""
    try:
        return tokenizer.encode(text, add_special_tokens=True, parse_special=parse_special)
    except Refusal as refusal:
        return str(refusal)


def _part(own: Vocabulary, twin: Vocabulary, name: str) -> str:
    """What differs, shortly."""
    values: tuple[Any, Any] = getattr(own, name), getattr(twin, name)
    if all(isinstance(value, (set, frozenset)) for value in values):
        return f"{sorted(values[0] ^ values[1])[:5]}"
    if all(isinstance(value, dict) for value in values):
        return f"{sorted(_entries(values[0]) ^ _entries(values[1]))[:5]}"
    return f"{str(values[0])[:80]} would be {str(values[1])[:80]}"


def _entries(values: Mapping[str, Any]) -> set[tuple[str, Any]]:
    return set(values.items())


def _lost(source: TensorSource, what: str) -> UnsupportedModelError:
    return UnsupportedModelError(source.path, "vocabulary", f"the other format changes {what}")
