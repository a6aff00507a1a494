"""Ids of nineteen real vocabularies, of every kind, against those that llama.cpp gives.

Fifteen of them ship with expected ids; for the other four they were recorded from
llama-cpp-python 0.3.36 (``data/llama_ids.json``).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from codec.llama_sdist import models_of_llama_cpp

from insitu.codec.detokenizer import Detokenizer
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.weights.source import open_source

SEPARATOR = "\n__ggml_vocab_test__\n"
SHIPPED = [
    "bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2",
    "llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder",
]  # fmt: skip
RECORDED = ["aquila", "baichuan", "gpt-neox", "nomic-bert-moe"]
# What is encoded is not always what was given: lower case, decomposed, blanks merged.
LOSSY = ["bert-bge", "nomic-bert-moe"]

# Slow: a source distribution of 77 MB.
pytestmark = pytest.mark.slow


def tokenizer_of(models_dir: Path, name: str) -> Tokenizer:
    """A vocabulary's tokenizer."""
    return load_tokenizer(open_source(models_of_llama_cpp(models_dir) / f"ggml-vocab-{name}.gguf"))


def expected(models_dir: Path, name: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids."""
    if name in RECORDED:
        recorded = json.loads((Path(__file__).parent / "data/llama_ids.json").read_text())
        return list(zip(recorded["texts"], recorded["ids"][name], strict=True))
    path = models_of_llama_cpp(models_dir) / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split(SEPARATOR)
    lines = Path(f"{path}.out").read_text().split("\n")[: len(texts)]
    return [
        (text, [int(token_id) for token_id in line.split()])
        for text, line in zip(texts, lines, strict=True)
    ]


@pytest.mark.parametrize("name", SHIPPED + RECORDED)
def test_ids_are_those_expected(models_dir: Path, name: str) -> None:
    tokenizer = tokenizer_of(models_dir, name)
    cases = expected(models_dir, name)
    assert len(cases) > 40
    for text, ids in cases:
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == ids, text
        if name not in LOSSY:
            assert tokenizer.detokenize(ids) == text
            detokenizer = Detokenizer(tokenizer)
            released = [one for token_id in ids for one in detokenizer.push(token_id)]
            assert "".join(one.text for one in [*released, *detokenizer.finish()]) == text


@pytest.mark.parametrize("name", SHIPPED + RECORDED)
def test_no_text_becomes_a_control_token(models_dir: Path, name: str) -> None:
    tokenizer = tokenizer_of(models_dir, name)
    markers = set(tokenizer.added_tokens.values())
    for marker, marker_id in tokenizer.added_tokens.items():
        for text in (marker, f"a {marker}\n{marker}b"):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert not markers & set(ids), text
        typed = [(marker, True), (f" {marker} ", False)]
        assert [i for i in tokenizer.encode_typed(typed) if i in markers] == [marker_id]


@pytest.mark.parametrize("name", SHIPPED + RECORDED)
def test_a_hostile_text_is_encoded(models_dir: Path, name: str) -> None:
    tokenizer = tokenizer_of(models_dir, name)
    for unit in ("a", " ", "\n", "1", "é", "日", "A", "! ", "a b ", "\u0301", "zq"):
        text = (unit * 100_000)[:100_000]
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        if name not in LOSSY:
            assert tokenizer.detokenize(ids) == text
