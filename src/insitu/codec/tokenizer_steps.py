"""A tokenizer.json's parts and their steps, refused by their place where they could do harm.

Not here: giving them to the library (``tokenizer_parts``).

Always true: a text becomes at most so many times as long; a normalisation table is whole; what is
put before words is what detokenizing takes away.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.codec.chars_map import CharsMap, CharsMapFault
from insitu.codec.piece_merger import SPACE
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown

if TYPE_CHECKING:
    from pathlib import Path

FILE = "tokenizer.json"
MAX_GROWTH = 64
SCHEMES = frozenset({"always", "first", "never"})


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """The file's parts."""

    path: Path
    values: dict[str, Any]

    def steps(self, part: str, inner: str) -> list[dict[str, Any]]:
        """A part's steps: those of a sequence, or itself."""
        value = self.values.get(part)
        if value is None:
            return []
        is_sequence = isinstance(value, dict) and value.get("type") == "Sequence"
        steps = value.get(inner) if is_sequence else [value]
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise self.fault(part, "is not an object")
        return steps

    def model_kind(self) -> object:
        """What ``model.type`` says, or what a file that leaves it out means; not checked."""
        model = self.values["model"]
        kind = model.get("type")
        return kind if kind is not None else "BPE" if "merges" in model else "Unigram"

    def known_steps(self, part: str, inner: str, known: frozenset[str]) -> list[dict[str, Any]]:
        """A part's steps, each of a type known."""
        steps = self.steps(part, inner)
        for step in steps:
            kind = step.get("type")
            if not isinstance(kind, str) or kind not in known:
                raise self.unsupported(f"{part}.type", kind)
        return steps

    def flag(self, where: str, values: dict[str, Any], key: str) -> bool:
        """What is true, false, or not said."""
        value = values.get(key)
        if value is not None and type(value) is not bool:
            raise self.fault(f"{where}.{key}", "must be true or false")
        return bool(value)

    def fault(self, where: str, message: str) -> ModelFileError:
        """The error to raise about a place."""
        return ModelFileError(self.path, f"{FILE} {where}", message)

    def unsupported(self, where: str, value: object) -> UnsupportedModelError:
        """The error to raise about what we do not know."""
        message = f"{shown(str(value))} is not supported"
        return UnsupportedModelError(self.path, f"{FILE} {where}", message)


def check_normalizers(file: TokenizerFile, steps: list[dict[str, Any]]) -> None:
    """Refuse, by their place, steps that let a text grow without bound, and broken tables."""
    growth = 1
    for step in steps:
        kind = step["type"]
        if kind == "Precompiled":
            _check_table(file, step.get("precompiled_charsmap"))
        elif kind == "Prepend" and step.get("prepend") != SPACE:
            raise file.unsupported("normalizer.prepend", step.get("prepend"))
        elif kind == "Replace":
            growth *= _growth(step)
            if growth > MAX_GROWTH:
                message = f"would make a text up to {growth} times as long, above {MAX_GROWTH}"
                raise file.fault("normalizer", message)


def check_word_mark(file: TokenizerFile, step: dict[str, Any]) -> None:
    """Refuse a Metaspace that marks words otherwise than ids are turned back."""
    if step.get("replacement") != SPACE:
        raise file.unsupported("pre_tokenizer.replacement", step.get("replacement"))
    file.flag("pre_tokenizer", step, "add_prefix_space")
    scheme = step.get("prepend_scheme")
    if scheme is not None and (not isinstance(scheme, str) or scheme not in SCHEMES):
        raise file.unsupported("pre_tokenizer.prepend_scheme", scheme)


def _growth(step: dict[str, Any]) -> int:
    """How many times as long a text may become; an expression may match between characters."""
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(content, str):
        return 1  # the library says what is wrong with it
    replaced = pattern.get("String") if isinstance(pattern, dict) else pattern
    if isinstance(replaced, str) and replaced:
        return max(1, -(-len(content) // len(replaced)))
    return 1 + len(content)


def _check_table(file: TokenizerFile, text: Any) -> None:
    where = "normalizer.precompiled_charsmap"
    try:
        CharsMap(base64.b64decode(text, validate=True))
    except (TypeError, ValueError, binascii.Error) as error:
        raise file.fault(where, "is not base64") from error
    except CharsMapFault as fault:
        raise file.fault(where, str(fault)) from fault
