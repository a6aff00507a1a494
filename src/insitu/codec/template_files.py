"""Where model files keep their chat templates, one or several by name.

Not here: rendering, choosing (``chat``).

Always true: the template called "default" is there unless the model has none, or only others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.template import Template, UnsupportedTemplate
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from insitu.weights.tensors import TensorSource

DEFAULT = "default"
_GGUF_KEY = "tokenizer.chat_template"
_GGUF_NAMES = "tokenizer.chat_templates"
_JINJA, _JSON, _CONFIG = "chat_template.jinja", "chat_template.json", "tokenizer_config.json"
_MOST_NAMES = 64


def read_templates(source: TensorSource) -> dict[str, Template]:
    """A model's templates by name; one that we cannot evaluate is refused, naming what it needs."""
    templates = {}
    for name, (where, text) in read_texts(source).items():
        try:
            templates[name] = Template(text)
        except UnsupportedTemplate as error:
            raise UnsupportedModelError(source.path, where, f"chat template {error}") from error
    return templates


def read_texts(source: TensorSource) -> dict[str, tuple[str, str]]:
    """Where each template stands, and its text."""
    return _gguf(source) if source.format == "gguf" else _folder(source)


def _gguf(source: TensorSource) -> dict[str, tuple[str, str]]:
    metadata = source.metadata
    found = {DEFAULT: (_GGUF_KEY, metadata.string(_GGUF_KEY, None))}
    for name in (metadata.strings(_GGUF_NAMES, None) or [])[:_MOST_NAMES]:
        where = f"{_GGUF_KEY}.{name}"
        found[name] = (where, metadata.string(where))
    return {name: (where, text) for name, (where, text) in found.items() if text}


def _folder(source: TensorSource) -> dict[str, tuple[str, str]]:
    """The newest layout that is there: a file of its own, a JSON file, the tokenizer's config."""
    raw = source.file(_JINJA)
    if raw is not None:
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(source.path, _JINJA, "is not valid UTF-8") from error
        return {DEFAULT: (_JINJA, text)} if text else {}
    for file in (_JSON, _CONFIG):
        raw = source.file(file)
        if raw is not None:
            where = f"{file} chat_template"
            found = _named(source, where, parse_object(source.path, file, raw).get("chat_template"))
            if found:
                return {name: (where, text) for name, text in found.items() if text}
    return {}


def _named(source: TensorSource, where: str, value: Any) -> dict[str, str]:
    if isinstance(value, list):
        pairs = [
            (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
            for entry in value[:_MOST_NAMES]
        ]
    elif isinstance(value, dict):
        pairs = list(value.items())[:_MOST_NAMES]
    else:
        pairs = [] if value is None else [(DEFAULT, value)]
    named: dict[str, str] = {}
    for name, text in pairs:
        if not isinstance(name, str) or not isinstance(text, str):
            raise ModelFileError(source.path, where, "is not a template")
        named[name] = text
    return named
