"""What bytes of anybody's making meet first: four targets for a fuzzer, and what they may raise.

Not here: making bytes (``fuzz``, ``test_targets``). Always true: what a target raises is no named
error of insitu, and so a finding.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from insitu.codec.template import Template, UnsupportedTemplate
from insitu.codec.template_values import TemplateFault
from insitu.codec.tokenizer import Tokenizer
from insitu.codec.tokenizer_json import read_vocabulary
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

MESSAGES = [{"role": "user", "content": "Hi <|x|>"}, {"role": "assistant", "content": "Ho"}]


def _open(data: bytes, suffix: str) -> None:
    descriptor, name = tempfile.mkstemp(suffix)
    try:
        os.write(descriptor, data)
        os.close(descriptor)
        with contextlib.suppress(ModelFileError):
            source = open_source(Path(name))
            for tensor in source.tensors:
                source.read(tensor)[:1].tobytes()
            source.close()
    finally:
        os.unlink(name)


def gguf(data: bytes) -> None:
    """A GGUF file, opened and its tensors touched."""
    _open(b"GGUF" + data[4:], ".gguf")


def safetensors(data: bytes) -> None:
    """A safetensors file, likewise."""
    _open(data, ".safetensors")


def tokenizer(data: bytes) -> None:
    """A tokenizer.json, read and used."""
    with contextlib.suppress(ModelFileError, Refusal):
        vocabulary = read_vocabulary(
            Path("fuzz"), {"tokenizer.json": data}.get, ("config.json", None)
        )
        made = Tokenizer(vocabulary)
        made.encode("Hello, wörld <|x|> 123", add_special_tokens=True, parse_special=True)


def template(data: bytes) -> None:
    """A chat template, parsed and rendered."""
    text = data.decode(errors="replace")
    with contextlib.suppress(UnsupportedTemplate, TemplateFault, Refusal):
        values = {"messages": MESSAGES, "add_generation_prompt": True}
        Template(text).render(values, {"bos_token": "<s>", "eos_token": "</s>"})


TARGETS: dict[str, Callable[[bytes], None]] = {
    "gguf": gguf,
    "safetensors": safetensors,
    "tokenizer": tokenizer,
    "template": template,
}
