"""Whole tokens in a text: the leftmost, and of those the longest, however many there are."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.codec.spellings import Spellings

SETS = st.sets(st.text(alphabet="<|a]^-\\é", min_size=1, max_size=5), max_size=12)


def by_alternation(spellings: set[str], text: str) -> list[tuple[int, str]]:
    """The definition: an alternation takes the first that fits."""
    longest_first = sorted(spellings, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
    return [(match.start(), match.group()) for match in re.finditer(pattern, text)]


@given(SETS, st.text(alphabet="<|a]^-\\éb", max_size=40))
def test_what_is_found_is_what_an_alternation_finds(spellings: set[str], text: str) -> None:
    assert list(Spellings(spellings).find(text)) == by_alternation(spellings, text)


@pytest.mark.parametrize("unit", ["<", "<unused", "<unused9", "x"])
def test_thousands_of_spellings_cost_what_few_do(unit: str) -> None:
    known = Spellings(f"<unused{index}>" for index in range(50_000))
    start = time.process_time()
    assert not list(known.find(unit * (200_000 // len(unit))))
    assert time.process_time() - start < 5  # an alternation takes minutes
