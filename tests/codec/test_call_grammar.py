"""Whatever a grammar of calls lets through is read back as calls that are valid."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from codec.spelled import read
from codec.walking import spoken, takes, tiny_tokenizer

from insitu.codec.call_grammar import CallGrammar
from insitu.codec.grammar import GrammarCompiler, GrammarConstraint, lark_of
from insitu.codec.tools import FORMATS, CallFormat, format_named
from insitu.refusal import Refusal

TOKENIZER = tiny_tokenizer()
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size)
TOOLS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Bern", "Zürich"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "metric": {"$ref": "#/$defs/flag"},
        },
        "required": ["days"],
        "additionalProperties": False,
        "$defs": {"flag": {"type": "boolean"}},
    },
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}
WAYS = [(one, "") for one in FORMATS]
WAYS += [(one, "[ARGS]") for one in FORMATS if one.name == "mistral"]
WAYS += [(one, "```json") for one in FORMATS if one.name == "deepseek"]


def compiled(rules: list[str]) -> GrammarConstraint:
    return COMPILER.compile(lark_of(rules), "tools")


def is_valid(name: str, arguments: dict[str, Any]) -> bool:
    if name == "now":
        return arguments == {}
    kinds = {"city": str, "days": int, "metric": bool}
    return (
        set(arguments) <= set(kinds)
        and "days" in arguments
        and all(isinstance(value, kinds[key]) for key, value in arguments.items())
        and 1 <= arguments["days"] <= 9
        and arguments.get("city", "Bern") in ("Bern", "Zürich")
    )


@pytest.mark.parametrize(("written", "template"), WAYS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_required_calls_are_read_back(
    written: CallFormat, template: str, *, is_parallel: bool
) -> None:
    rules = CallGrammar(written, TOKENIZER, template).calls(TOOLS, is_parallel=is_parallel)
    constraint, draw = compiled(["start: calls", *rules]), random.Random(4)  # noqa: S311
    seen = set()
    for _ in range(6):
        walked, has_ended = spoken(constraint, TOKENIZER, draw, most=600)
        text = b"".join(map(TOKENIZER.token_bytes, walked)).decode(errors="replace")
        answer = read([text], written=written, tools=tuple(TOOLS))
        if not has_ended:
            continue
        assert answer.content == ""
        assert answer.calls
        assert answer.num_complete_calls == len(answer.calls)
        assert is_parallel or len(answer.calls) == 1
        for _, name, arguments in answer.calls:
            assert is_valid(name or "", json.loads(arguments)), text
            seen.add(name)
    assert seen


@pytest.mark.parametrize("written", FORMATS)
def test_strict_tools_leave_text_free_and_hold_calls_to_their_schemas(written: CallFormat) -> None:
    grammar = CallGrammar(written, TOKENIZER, "")
    constraint = compiled(grammar.among_text(TOOLS, is_parallel=True))
    assert takes(constraint, TOKENIZER, "Only words, no call.")
    good = {
        "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "granite": '<|tool_call|>[{"name": "now", "arguments": {}}]',
        "mistral": '[TOOL_CALLS][{"name": "now", "arguments": {}}]',
        "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "llama3": '{"name": "now", "parameters": {}}',
        "pythonic": "[now()]",
        "gemma": "```tool_code\n[now()]\n```",
    }[written.name]
    assert takes(constraint, TOKENIZER, good)
    assert takes(constraint, TOKENIZER, good.replace("now", "never")) is False
    if written.openings:
        assert takes(constraint, TOKENIZER, f"First.\n{good}\nThen words.")


@pytest.mark.parametrize("written", [one for one in FORMATS if one.openings])
def test_where_calls_are_not_wanted_none_is_opened(written: CallFormat) -> None:
    constraint = compiled(CallGrammar(written, TOKENIZER, "").no_calls())
    assert takes(constraint, TOKENIZER, "Words, <tags> and {braces}.")
    assert takes(constraint, TOKENIZER, f"Words {written.openings[0]}") is False


def test_an_optional_parameter_may_be_given() -> None:
    rules = CallGrammar(format_named("hermes") or FORMATS[0], TOKENIZER, "").calls(
        TOOLS, is_parallel=False
    )
    constraint = compiled(["start: calls", *rules])
    head = '<tool_call>\n{"name": "weather", "arguments": '
    for arguments in ('{"days":3}', '{"days":3,"metric":true}', '{"city":"Bern","days":3}'):
        assert takes(constraint, TOKENIZER, head + arguments + "}\n</tool_call>"), arguments
    for arguments in ("{}", '{"city":"Bern"}', '{"days":10}', '{"days":3,"other":1}'):
        assert not takes(constraint, TOKENIZER, head + arguments + "}\n</tool_call>"), arguments


@pytest.mark.parametrize("required", [5, "days", True, {"days": 1}, None, [{}, 5, []]])
def test_python_calls_of_a_schema_whose_required_is_no_list_require_nothing(required: Any) -> None:
    schema = {"properties": {"days": {"type": "integer"}}, "required": required}
    pythonic = next(one for one in FORMATS if one.name == "pythonic")
    rules = CallGrammar(pythonic, TOKENIZER, "").calls({"f": schema}, is_parallel=False)
    assert takes(compiled(["start: calls", *rules]), TOKENIZER, "[f()]") is True


def python_rules(schema: dict[str, Any]) -> list[str]:
    pythonic = next(one for one in FORMATS if one.name == "pythonic")
    rules = CallGrammar(pythonic, TOKENIZER, "").calls({"f": schema}, is_parallel=False)
    return ["start: calls", *rules]


def test_python_calls_have_every_required_argument() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["b", "a"]}
    constraint = compiled(python_rules(schema))
    for text in ("[f(a=1, b=2)]", '[f(a=1, b="x")]', "[f(a=1, b=[null])]"):
        assert takes(constraint, TOKENIZER, text), text
    for text in ("[f()]", "[f(a=1)]", "[f(b=1)]"):
        assert not takes(constraint, TOKENIZER, text), text
    never = {"properties": {"a": {"type": "integer"}, "b": False}, "required": ["a"]}
    assert takes(compiled(python_rules(never)), TOKENIZER, "[f(a=1)]")
    assert not takes(compiled(python_rules(never)), TOKENIZER, "[f(a=1, b=1)]")


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
        ({"type": ["object", "null"]}, "type"),
        ({"properties": {"a": {}}, "minProperties": 1}, "minProperties"),
        ({"properties": {"not-a-name": {}}}, "not-a-name"),
        ({"properties": {"class": {}}}, "class"),
        ({"properties": {"a": False}, "required": ["a"]}, "parameter a"),
        ({"required": ["a b"]}, "a b"),
    ],
)
def test_what_python_calls_cannot_be_held_to_is_refused_by_name(
    schema: dict[str, Any], word: str
) -> None:
    with pytest.raises(Refusal, match=word) as caught:
        python_rules(schema)
    assert (caught.value.param, caught.value.code) == ("tools", "invalid_grammar")
