"""What guides accept: texts by hand, random walks, and refusals."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from codec.walking import allowed, spoken, takes, tiny_tokenizer

from insitu.codec.grammar import (
    MAX_DEPTH,
    MAX_GUIDE_BYTES,
    GrammarCompiler,
    GrammarConstraint,
    grammar_of,
)
from insitu.refusal import Refusal, RequestFailed
from insitu.types import Guide, GuideKind

TOKENIZER = tiny_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size)
TEXT = {
    "type": "object",
    "properties": {"t": {"type": "string"}},
    "required": ["t"],
    "additionalProperties": False,
}


def guided(kind: GuideKind, value: Any = None) -> GrammarConstraint:
    return COMPILER.compile(grammar_of(Guide(kind, value, "guide")), "guide")


def accepts(kind: GuideKind, value: Any, text: str | bytes) -> bool:
    return takes(guided(kind, value), TOKENIZER, text) is True


@pytest.mark.parametrize(
    "inside",
    [b"\n", b"\x01", rb"\q", rb"\u12", rb"\ud83d", rb"\ude00\ud83d", b"\xff", "😀".encode()[:2]],
)
def test_a_json_string_is_what_a_strict_parser_takes(inside: bytes) -> None:
    assert takes(guided("json_schema", TEXT), TOKENIZER, b'{"t":"' + inside + b'"}') is False


@pytest.mark.parametrize("inside", [r"\n", r"\u00e9", r"\ud83d\ude00", "😀", "é", "<|im_end|>", ""])
def test_legal_escapes_and_characters_are_allowed(inside: str) -> None:
    text = '{"t":"' + inside + '"}'
    assert accepts("json_schema", TEXT, text)
    assert isinstance(json.loads(text)["t"], str)


def test_a_key_is_closed_by_what_opened_it() -> None:
    assert not accepts("json_schema", TEXT, "{\"t':1}")


def test_random_walks_are_json() -> None:
    constraint, draw = guided("json_schema", TEXT), random.Random(1)  # noqa: S311
    num_ended = 0
    for _ in range(40):
        ids, has_ended = spoken(constraint, TOKENIZER, draw, most=120)
        if has_ended:
            value = json.loads(b"".join(map(TOKENIZER.token_bytes, ids)).decode())
            assert list(value) == ["t"]
            num_ended += 1
    assert num_ended > 5


@pytest.mark.parametrize(
    ("schema", "is_valid"),
    [
        ({"type": "integer", "minimum": -7, "maximum": 12}, lambda n: -7 <= n <= 12),
        ({"type": "integer", "minimum": 3}, lambda n: n >= 3),
        ({"type": "integer", "exclusiveMinimum": 0}, lambda n: n > 0),
        ({"type": "integer", "maximum": -10}, lambda n: n <= -10),
        ({"type": "integer", "minimum": 0, "maximum": 0}, lambda n: n == 0),
        ({"type": "integer", "multipleOf": 5}, lambda n: n % 5 == 0),
    ],
)
def test_integers_are_those_in_range(schema: dict[str, Any], is_valid: Any) -> None:
    constraint = guided("json_schema", schema)
    found = {text for text in _texts("-0123456789", 3) if takes(constraint, TOKENIZER, text)}
    wanted = {str(number) for number in range(-99, 1000) if is_valid(number)}
    assert found - {"-0"} == wanted


def _texts(letters: str, most: int) -> list[str]:
    return [
        "".join(one)
        for size in range(1, most + 1)
        for one in itertools.product(letters, repeat=size)
    ]


VALUES = ["离线", "上海", "naïve", "😀", 'a"b', "tab\t"]


def test_enums_are_their_values_however_they_came_in() -> None:
    raw = json.loads(json.dumps({"enum": VALUES}, ensure_ascii=False))
    escaped = json.loads(json.dumps({"enum": VALUES}, ensure_ascii=True))
    assert grammar_of(Guide("json_schema", raw)) == grammar_of(Guide("json_schema", escaped))
    for value in VALUES:
        assert accepts("json_schema", raw, json.dumps(value, ensure_ascii=False))
    schema = {"type": "object", "properties": {"离": {"const": "线"}}, "required": ["离"]}
    assert accepts("json_schema", schema, '{"离":"线"}')
    assert not accepts("json_schema", schema, '{"离":"?"}')


def test_values_that_spell_the_models_signs_are_text() -> None:
    schema = {"enum": ["<|im_end|>"]}
    assert accepts("json_schema", schema, '"<|im_end|>"')
    constraint = guided("json_schema", schema)
    end = TOKENIZER.added_tokens["<|im_end|>"]
    for token_id in TOKENIZER.encode('"', add_special_tokens=False, parse_special=False):
        constraint.advance(token_id)
    ids = allowed(constraint, TOKENIZER)
    assert ids is not None
    assert end not in ids


@pytest.mark.parametrize("sign", ["<|im_start|>", "<tool_call>", "<nothing>"])
def test_signs_in_a_grammar_are_spelt_whatever_tokens_there_are(sign: str) -> None:
    # A control token, an added token, and none at all.
    assert accepts("lark", f'start: "{sign}" /[0-9]+/', f"{sign}42")


def test_required_and_optional_properties_in_their_order() -> None:
    number = {"type": "integer"}
    schema = {
        "type": "object",
        "properties": dict.fromkeys("abcd", number),
        "required": ["a", "c"],
        "additionalProperties": False,
    }
    constraint = guided("json_schema", schema)
    for keys in ("ac", "abc", "acd", "abcd"):
        text = "{" + ",".join(f'"{key}":1' for key in keys) + "}"
        assert takes(constraint, TOKENIZER, text)
    for text in ('{"a":1,"c":1,}', '{"a":1,,"c":1}', '{"c":1}', '{"b":1,"c":1}', '{"a":1}'):
        assert not takes(constraint, TOKENIZER, text)


GOOD = ("json_schema", TEXT)
BAD: list[tuple[GuideKind, Any]] = [
    ("json_schema", {"type": "object", "properties": {"a": "text"}}),
    ("json_schema", {"type": "strng"}),
    ("json_schema", {"type": "object", "properties": []}),
    ("json_schema", {"type": "object", "required": "a"}),
    ("json_schema", 5),
    ("json_schema", []),
    ("json_schema", False),
    ("json_schema", {"type": "array", "uniqueItems": True}),
    ("json_schema", {"$ref": "https://example.org/schema"}),
    (
        "json_schema",
        {"allOf": [{"$ref": "b"}], "$defs": {"a": {"$id": "b", "type": "string"}}},
    ),
    ("json_schema", {"type": "integer", "maximum": 2**64}),
    ("json_schema", {"enum": [1, {"a": -(2**63) - 1}]}),
    ("json_schema", {"$ref": "#"}),
    ("regex", r"[^\s\S]"),
    ("regex", "("),
    ("lark", "start: foo"),
    ("lark", "nothing"),
    ("gbnf", "root ::= foo"),
    ("gbnf", 'root ::= "a'),
    ("choice", ()),
    ("choice", ("a", "")),
    ("regex", "a" * MAX_GUIDE_BYTES),
]


@pytest.mark.parametrize(("kind", "value"), BAD)
def test_what_cannot_be_compiled_is_refused_by_name(kind: GuideKind, value: Any) -> None:
    with pytest.raises(Refusal) as caught:
        guided(kind, value)
    assert (caught.value.param, caught.value.code) == ("guide", "invalid_grammar")
    assert "guide" in caught.value.message
    assert accepts("json_schema", TEXT, '{"t":"x"}')


def test_a_count_may_be_written_with_a_point() -> None:
    schema = {"type": "array", "items": {"type": "string", "maxLength": 1.0}, "maxItems": 2.0}
    assert accepts("json_schema", schema, '["a","b"]')
    assert not accepts("json_schema", schema, '["a","b","c"]')
    assert not accepts("json_schema", schema, '["ab"]')
    with pytest.raises(Refusal):
        guided("json_schema", {"maxItems": 2.5})
    const = {"const": {"maxItems": 2.0}}
    assert accepts("json_schema", const, '{"maxItems":2}')


def test_depth_has_a_limit() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(MAX_DEPTH):
        schema = {"type": "array", "items": schema}
    with pytest.raises(Refusal, match="nested deeper than 64"):
        guided("json_schema", schema)


def test_other_kinds_match_what_they_say() -> None:
    assert accepts("regex", "^(|[a-z]+)$", "")
    assert accepts("regex", "[0-9]{2}", "42")
    assert not accepts("regex", "[0-9]{2}", "421")
    assert accepts("choice", ("yes", "no", 'a"b\n'), 'a"b\n')
    assert not accepts("choice", ("yes", "no"), "ye")
    assert accepts("lark", 'start: start "a" | "b"', "baa")
    assert accepts("gbnf", 'root ::= "x" [0-9]+', "x12")
    assert accepts("json_object", None, '{"a": [1, null]}')
    assert not accepts("json_object", None, "[]")


def test_a_constraint_forks_and_rolls_back() -> None:
    constraint = guided("choice", ("abc", "abd", "x"))
    first, second, third = (
        TOKENIZER.encode(one, add_special_tokens=False, parse_special=False)[0] for one in "xbc"
    )
    fork = constraint.fork()
    fork.advance(first)
    end = allowed(fork, TOKENIZER)
    assert end == sorted(TOKENIZER.end_ids)
    before = allowed(constraint, TOKENIZER)
    constraint.advance(TOKENIZER.encode("a", add_special_tokens=False, parse_special=False)[0])
    constraint.advance(second)
    assert allowed(constraint, TOKENIZER) is not None
    constraint.rollback(2)
    assert allowed(constraint, TOKENIZER) == before
    assert third not in (before or [])
    assert list(constraint.forced()) == []


def letters_until_it_fails(constraint: GrammarConstraint) -> tuple[int, RequestFailed]:
    token_id = TOKENIZER.encode("a", add_special_tokens=False, parse_special=False)[0]
    for count in itertools.count():
        try:
            constraint.advance(token_id)
            allowed(constraint, TOKENIZER)
        except RequestFailed as error:
            return count, error
    raise AssertionError


def test_a_grammar_grows_too_complex_by_its_own_tokens_alone() -> None:
    wide = "(((a{1,1000}){1,1000}){1,1000})"
    before, begun = guided("regex", wide), guided("regex", wide)
    begun.advance(TOKENIZER.encode("a", add_special_tokens=False, parse_special=False)[0])
    alone, error = letters_until_it_fails(guided("regex", wide))
    assert (error.code, error.status, error.param) == ("grammar_too_complex", 422, "guide")
    assert "too many expressions" in str(error)
    assert "Tokens" not in str(error)
    assert alone > 2
    assert letters_until_it_fails(before)[0] == alone
    assert letters_until_it_fails(begun.fork())[0] == alone - 1
    assert letters_until_it_fails(guided("regex", wide))[0] == alone
