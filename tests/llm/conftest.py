"""A tiny random model, and one whose text is dictated, each loaded once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tiny_model import write_chain_gguf, write_gguf

from insitu.llm.front_door import LLM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def random_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random") / "tiny-random.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="session")
def random_llm(random_path: Path) -> Iterator[LLM]:
    with LLM(random_path, threads=1) as llm:
        yield llm


@pytest.fixture(scope="session")
def chain_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """After a comes b, then c, ... then z, then the end token; after 0 comes é byte by byte."""
    path = tmp_path_factory.mktemp("chain") / "chain.gguf"
    after = {ord(a): ord(a) + 1 for a in "abcdefghijklmnopqrstuvwxy"}
    after |= {ord("0"): 0xC3, 0xC3: 0xA9, 0xA9: ord("!"), ord("!"): ord("!")}
    alphabet = _ids_by_byte()
    write_chain_gguf(path, {alphabet[a]: alphabet[b] for a, b in after.items()})
    return path


def _ids_by_byte() -> dict[int, int]:
    from tiny_model import Vocabulary

    words = Vocabulary()
    return {byte: words.id_of_byte(byte) for byte in range(256)}


@pytest.fixture(scope="session")
def chain_llm(chain_path: Path) -> Iterator[LLM]:
    with LLM(chain_path, threads=1) as llm:
        yield llm
