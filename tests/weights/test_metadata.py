"""Metadata: types, ranges and defaults; each fault names the key. Typed arrays: test_gguf."""

from __future__ import annotations

from typing import Any

import pytest

from insitu.weights.errors import ModelFileError
from insitu.weights.metadata import Metadata

VALUES: dict[str, Any] = {
    "text": "x", "none": None, "one": 1, "half": 0.5, "yes": True, "texts": ["a", "b"],
    "ids": [1, 2], "mixed": [1, 0.5], "inner": {"type": "linear", "factor": 4.0},
    "surrogate": "\ud83d", "nan": float("nan"), "huge": 10**400,
}  # fmt: skip
KEYS = Metadata("config.json", VALUES)


def test_values_come_out_by_type() -> None:
    assert KEYS.string("text") == "x"
    assert KEYS.integer("one", minimum=1, maximum=1) == 1
    assert KEYS.number("one") == 1.0
    assert KEYS.number("half", minimum=0.0, maximum=1.0) == 0.5
    assert KEYS.boolean("yes") is True
    assert KEYS.strings("texts") == ["a", "b"]
    assert list(KEYS.each_string("texts")) == ["a", "b"]
    assert KEYS.length("texts") == 2
    assert KEYS.integers("ids", minimum=1, maximum=2) == [1, 2]
    assert KEYS.numbers("mixed") == [1.0, 0.5]
    assert list(KEYS.keys()) == list(VALUES)


def test_null_counts_as_absent() -> None:
    for key in ("none", "absent"):
        assert not KEYS.has(key)
        assert KEYS.string(key, None) is None
        assert KEYS.integer(key, 5, maximum=1) == 5
        assert KEYS.numbers(key, default=None) is None
        assert KEYS.mapping(key) is None
        for accessor in (KEYS.string, KEYS.integer, KEYS.number, KEYS.boolean, KEYS.strings):
            with pytest.raises(ModelFileError, match=f"config.json: key {key}: is missing"):
                accessor(key)


@pytest.mark.parametrize(
    ("accessor", "key", "message"),
    [
        ("string", "one", "must be a string, not an integer"),
        ("string", "texts", "must be a string, not an array"),
        ("string", "surrogate", "unpaired surrogate"),
        ("integer", "half", "must be an integer, not a number"),
        ("integer", "yes", "must be an integer, not true or false"),
        ("integer", "text", "must be an integer, not a string"),
        ("number", "yes", "must be a number"),
        ("number", "nan", "not a finite number"),
        ("number", "huge", "not a finite number"),
        ("boolean", "one", "must be true or false"),
        ("strings", "text", "must be an array of strings, not a string"),
        ("strings", "ids", r"ids\[0\]: must be a string"),
        ("integers", "mixed", r"mixed\[1\]: must be an integer"),
        ("numbers", "inner", "must be an array of numbers, not an object"),
        ("mapping", "text", "must be an object, not a string"),
    ],
)
def test_a_wrong_type_names_the_key(accessor: str, key: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: key {key}.*{message}|{message}"):
        getattr(KEYS, accessor)(key)


def test_ranges_hold() -> None:
    with pytest.raises(ModelFileError, match="key one: is 1, below 2"):
        KEYS.integer("one", minimum=2)
    with pytest.raises(ModelFileError, match=r"key half: is 0\.5, above 0\.25"):
        KEYS.number("half", maximum=0.25)
    with pytest.raises(ModelFileError, match="key ids: is 2, above 1"):
        KEYS.integers("ids", maximum=1)


def test_nested_objects_name_their_path() -> None:
    inner = KEYS.mapping("inner")
    assert inner is not None
    assert inner.string("type") == "linear"
    with pytest.raises(ModelFileError, match=r"key inner\.factor: must be an integer"):
        inner.integer("factor")
