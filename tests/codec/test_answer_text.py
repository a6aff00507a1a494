"""Answers read as reasoning, content and calls: however the text falls into tokens, the same."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from codec.spelled import Answer, cuts, read

from insitu.codec.reasoning import signs_named
from insitu.codec.tools import FORMATS, format_named

THINK = signs_named("think")
assert THINK is not None
AWAITED = replace(THINK, is_awaited=True)
ONE = {"city": 'Zürich, "old" town }', "days": 3, "deep": {"a": [1, {"b": None}]}}
COMPACT = json.dumps(ONE, separators=(",", ":"), ensure_ascii=False)
SPACED = json.dumps(ONE, indent=1)


def python_call(name: str, arguments: dict[str, object]) -> str:
    """A call as Python writes it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


WRITTEN = {
    "hermes": (
        "Let me look.\n"
        '<tool_call>\n{"name": "weather", "arguments": ' + SPACED + "}\n</tool_call>\n"
        '<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>\nDone.'
    ),
    "granite": (
        'Let me look.\n<|tool_call|>[{"name":"weather","arguments":' + SPACED + "},"
        ' {"name": "now", "arguments": {}}]\nDone.'
    ),
    "mistral": (
        'Let me look.\n[TOOL_CALLS] [{"name": "weather", "arguments": ' + SPACED + ', "id": "x"},'
        ' {"name": "now", "arguments": {}}]\nDone.'
    ),
    "deepseek": (
        "Let me look.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        "```json\n" + SPACED + "\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>\nDone."
    ),
    "llama3": (
        '{"name": "weather", "parameters": '
        + SPACED
        + '}; {"name": "now", "parameters": {}}\nDone.'
    ),
    "pythonic": "[" + python_call("weather", ONE) + ", now()]\nDone.",
    "gemma": "Let me look.\n```tool_code\n[" + python_call("weather", ONE) + ", now()]\n```\nDone.",
}


def test_every_format_has_a_text_here() -> None:
    assert set(WRITTEN) == {one.name for one in FORMATS}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_calls_are_the_same_wherever_the_text_is_cut(name: str) -> None:
    text = WRITTEN[name]
    written = format_named(name)

    def parse(pieces: list[str]) -> Answer:
        answer = read(pieces, written=written, tools=("weather", "now"))
        assert answer.num_tokens == len(pieces)
        answer.num_tokens = 0
        return answer

    whole = parse([text])
    (_, first, arguments), (_, second, nothing) = whole.calls
    assert (first, second, nothing) == ("weather", "now", "{}")
    assert json.loads(arguments) == ONE
    if name not in ("pythonic", "gemma"):
        assert arguments == SPACED
    has_words_before = text.startswith("Let me look.\n")
    assert whole.content == ("Let me look.\n" if has_words_before else "") + "Done."
    assert whole.num_complete_calls == 2
    assert parse(list(text)) == whole
    for at in range(1, len(text)):
        assert parse([text[:at], text[at:]]) == whole, at
    draw = random.Random(5)  # noqa: S311
    for _ in range(500):
        places = draw.sample(range(1, len(text)), draw.randint(2, 20))
        assert parse(cuts(text, places)) == whole, places


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call> is how they begin",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "weather"',
        '<tool_call>{"nam',
        "a <tool_cal",
        '{"name": "weather", "arguments": {}}',
        "```json\n{}\n```",
        "<tool_call>\n\nUser:",
    ],
)
def test_text_that_looks_like_a_call_stays_text(text: str) -> None:
    for pieces in ([text], list(text)):
        answer = read(pieces, written=format_named("hermes"), tools=("weather",))
        assert (answer.content, answer.calls) == (text, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", '{"name": "Ann", "age": 3}'),
        ("llama3", 'Use {"name": "weather", "parameters": {}}'),
        ("pythonic", "[1, 2, 3] is a list"),
        ("pythonic", "[weather is a word] (so)"),
        ("mistral", "[TOOL_CALLS] are signs"),
        ("deepseek", "<｜tool▁calls▁begin｜>so"),
        ("gemma", "```tool_code\nprint(1)\n```"),
        ("granite", "<|tool_call|>[]"),
    ],
)
def test_other_formats_leave_text_alone(name: str, text: str) -> None:
    for pieces in ([text], list(text)):
        answer = read(pieces, written=format_named(name), tools=("weather",))
        assert (answer.content, answer.calls) == (text, [])


def test_newer_mistral_and_coder_spellings() -> None:
    text = 'So.[TOOL_CALLS]weather[ARGS]{"a": 1}[TOOL_CALLS]now{"b": [2]}'
    answer = read(list(text), written=format_named("mistral"), tools=("weather", "now"))
    assert answer.calls == [("id0", "weather", '{"a": 1}'), ("id1", "now", '{"b": [2]}')]
    assert answer.content == "So."
    text = (
        "<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
    )
    answer = read(list(text), written=format_named("hermes"), tools=("weather",))
    assert answer.calls == [("id0", "weather", '{"city": "Bern", "days": 3}')]


def test_arguments_as_a_string_are_the_object_they_hold() -> None:
    text = '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>'
    answer = read(list(text), written=format_named("hermes"), tools=("now",))
    assert answer.calls == [("id0", "now", '{"a": 1}')]


def test_a_call_cut_inside_its_arguments_is_not_complete() -> None:
    text = (
        '<tool_call>{"name": "now", "arguments": {}}</tool_call><tool_call>{"name": "now", "argum'
    )
    answer = read(list(text), written=format_named("hermes"), tools=("now",))
    assert answer.num_complete_calls == 1
    assert len(answer.calls) == 1
    answer = read(
        list(text[: text.index("{}") + 1]), written=format_named("hermes"), tools=("now",)
    )
    assert (answer.num_complete_calls, len(answer.calls)) == (0, 1)


def test_one_call_at_most_ends_the_answer() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>\n<tool_call>{"name": "now"'
    for pieces in ([text], list(text), cuts(text, [20, 41, 50])):
        answer = read(pieces, written=format_named("hermes"), tools=("now",), most=1)
        assert answer.calls == [("id0", "now", "{}")]
        assert (answer.content, answer.stop) == ("", "")


@pytest.mark.parametrize(
    ("text", "is_thinking", "reasoning", "content"),
    [
        ("plan</think>42", True, "plan", "42"),
        ("<think>plan</think>42", False, "plan", "42"),
        ("\n<think>\nplan\n\nmore\n</think>\n\n42", False, "plan\n\nmore", "42"),
        ("<think>plan", False, "plan", ""),
        ("plan</thin", True, "plan</thin", ""),
        ("<think></think>42", False, "", "42"),
        ("</think>42", True, "", "42"),
        ("<think>a</think>b<think>c</think>d", False, "a", "b<think>c</think>d"),
        ("x</think>\n```\n</think>\n```", True, "x", "```\n</think>\n```"),
        ("so <think>a</think>", False, "", "so <think>a</think>"),
        ("plan</think>42", False, "", "plan</think>42"),  # nothing opened it: it is text
        ("<thin", False, "", "<thin"),
        ("\n\n", False, "", "\n\n"),
    ],
)
def test_reasoning_is_what_an_answer_begins_with(
    text: str, is_thinking: bool, reasoning: str, content: str
) -> None:
    for pieces in ways_to_cut(text):
        answer = read(pieces, signs=THINK, is_thinking=is_thinking)
        assert (answer.reasoning, answer.content) == (reasoning, content), pieces


def ways_to_cut(text: str) -> list[list[str]]:
    """A text whole, behind a token of none, in characters, in two at every place, and at random."""
    draw = random.Random(7)  # noqa: S311
    ways = [[text], ["", text], list(text), *(cuts(text, [at]) for at in range(1, len(text)))]
    return ways + [cuts(text, draw.sample(range(len(text)), min(3, len(text)))) for _ in range(20)]


@pytest.mark.parametrize(
    ("text", "is_thinking", "reasoning", "content"),
    [
        ("plan</think>42", False, "plan", "42"),
        ("\nplan\n</think>\n\n42</think>", False, "plan", "42</think>"),
        ("<think>plan</think>42", False, "plan", "42"),
        ("plan</think>42", True, "plan", "42"),
        ("the answer is 42 </thin", False, "", "the answer is 42 </thin"),
        ("", False, "", ""),
    ],
)
def test_a_closing_sign_may_be_waited_for(
    text: str, is_thinking: bool, reasoning: str, content: str
) -> None:
    for pieces in ways_to_cut(text):
        answer = read(pieces, signs=AWAITED, is_thinking=is_thinking)
        assert (answer.reasoning, answer.content) == (reasoning, content), pieces


def test_a_stop_string_is_looked_for_once_no_closing_sign_can_come() -> None:
    answer = read(list("a stop b</think>c stop d"), signs=AWAITED, stop=("stop",))
    assert (answer.reasoning, answer.content, answer.stop) == ("a stop b", "c ", "stop")
    answer = read(list("a stop b"), signs=AWAITED, stop=("stop",))
    assert (answer.reasoning, answer.content, answer.stop) == ("", "a ", "stop")


def test_signs_that_are_control_tokens_are_seen_and_never_shown() -> None:
    pieces = ["<think>", "a", "</think>", "b", "<think>", "c"]
    answer = read(pieces, signs=THINK, controls=("<think>", "</think>"))
    assert (answer.reasoning, answer.content) == ("a", "bc")
    assert (answer.num_tokens, answer.num_reasoning_tokens) == (6, 1)


def test_channels_are_reasoning_and_an_answer() -> None:
    signs = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>")
    pieces = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>", "<|start|>", "assistant"]
    pieces += ["<|channel|>", "final", "<|message|>", "4", "2"]
    answer = read(pieces, signs=signs_named("channels"), controls=signs)
    assert (answer.reasoning, answer.content) == ("hm", "42")
    answer = read(pieces[7:], signs=signs_named("channels"), controls=signs)
    assert (answer.reasoning, answer.content) == ("", "42")


def test_a_call_within_reasoning_is_none() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    text = f"<think>{call}</think>{call}"
    answer = read(list(text), signs=THINK, written=format_named("hermes"), tools=("now",))
    assert (answer.reasoning, answer.content) == (call, "")
    assert answer.calls == [("id0", "now", "{}")]


def test_stop_strings_are_looked_for_in_content_alone() -> None:
    call = '<tool_call>{"name":"now","arguments":{"x":"STOP"}}</tool_call>'
    text = f"<think>a STOP b</think>c{call}d STOP e"
    draw = random.Random(3)  # noqa: S311
    ways = [[text], list(text), *(cuts(text, draw.sample(range(len(text)), 9)) for _ in range(40))]
    for pieces in ways:
        answer = read(
            pieces, signs=THINK, written=format_named("hermes"), tools=("now",), stop=("STOP", "OP")
        )
        assert answer.reasoning == "a STOP b"
        assert answer.content == "cd "
        assert answer.calls == [("id0", "now", '{"x":"STOP"}')]
        assert answer.stop == "STOP"


@pytest.mark.parametrize("stop", ["\n\nUser:", "answer<", "zz"])
def test_text_held_back_for_a_stop_string_still_passes_the_readers(stop: str) -> None:
    text = '<think>a</think>answer<tool_call>{"name":"now","arguments":{}}</tool_call>'
    for pieces in ([text], list(text)):
        answer = read(
            pieces, signs=THINK, written=format_named("hermes"), tools=("now",), stop=(stop,)
        )
        assert (answer.reasoning, answer.content, len(answer.calls)) == ("a", "answer", 1)
    text = "<think>a</think>answer<tool_call>\n\nUser:"
    for pieces in ([text], list(text)):
        answer = read(
            pieces, signs=THINK, written=format_named("hermes"), tools=("now",), stop=("\n\nUser:",)
        )
        assert (answer.reasoning, answer.content) == ("a", "answer<tool_call>")
        assert answer.stop == "\n\nUser:"
