"""How families cut text into words, recorded where ids were llama.cpp's; and how long it takes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from insitu.codec.byte_map import byte_characters, mapped_bytes
from insitu.codec.pretokenizers import _CUTS, FAMILIES, Family, word_encoder

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data/cuts.json").read_text())
BYTES = {character: byte for byte, character in byte_characters().items()}


def words(family: Family, text: str) -> list[str]:
    """The words of a text."""
    tokenizer = Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    word_encoder(tokenizer, family)
    cut = _CUTS.get(family.threes)
    return [
        mapped_bytes(word).decode()
        for part in (cut(text) if cut else [text])
        for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(part)
    ]


@pytest.mark.parametrize("names", RECORDED["cuts"])
def test_words_are_those_recorded(names: str) -> None:
    for name in names.split():
        assert words(FAMILIES[name], RECORDED["text"]) == RECORDED["cuts"][names]


def test_every_family_is_recorded() -> None:
    recorded = {FAMILIES[name] for names in RECORDED["cuts"] for name in names.split()}
    assert recorded == set(FAMILIES.values())


@pytest.mark.parametrize(
    "name", ["gpt-2", "llama3", "tiny_aya", "superbpe", "deepseek-llm", "gpt-4o"]
)
@given(text=st.text(alphabet="aA1½ \n.'s日\u0301", max_size=30))
def test_nothing_is_lost(name: str, text: str) -> None:
    assert "".join(words(FAMILIES[name], text)) == text


@pytest.mark.parametrize(
    ("name", "text", "cut"),
    [
        ("superbpe", "a1234567b", ["a", "1", "234", "567", "b"]),
        ("superbpe", "123456", ["123", "456"]),
        ("tiny_aya", "1234567, 12", ["1", "234", "567", ",", " ", "12"]),
        ("tiny_aya", "1234a", ["123", "4", "a"]),
        ("afmoe", "12345", ["12", "345"]),
        ("deepseek-llm", "a   \n", ["a", "   ", "\n"]),
    ],
)
def test_digits_and_blanks_are_cut_as_the_family_does(name: str, text: str, cut: list[str]) -> None:
    assert words(FAMILIES[name], text) == cut


def slowdown(family: Family, unit: str) -> float:
    """How much more processor time four times the text takes."""
    encode = word_encoder(Tokenizer(models.BPE(vocab=BYTES, merges=[])), family)

    def cost(size: int) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            encode((unit * size)[:size] + "x", False)
            times.append(time.process_time() - start)
        return min(times)

    return cost(80_000) / max(cost(20_000), 0.01)


UNITS = ["a", " ", "\n", " \n", "A", "aA", "1", "1a", "\u0301", "日", "'", "! ", "\t ", "½", "\r"]


# Slow: two minutes. Time itself is not asserted, only that it does not grow with the square.
@pytest.mark.slow
@pytest.mark.parametrize("family", dict.fromkeys(FAMILIES.values()))
def test_time_is_linear_in_every_family(family: Family) -> None:
    for unit in UNITS:
        assert slowdown(family, unit) < 10, unit


@pytest.mark.parametrize("name", ["deepseek-llm", "tiny_aya", "superbpe"])
def test_what_would_look_ahead_for_ever_does_not(name: str) -> None:
    for unit in (" ", "1"):
        assert slowdown(FAMILIES[name], unit) < 10, unit
