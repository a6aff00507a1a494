"""Reasoning, calls and guides over HTTP: asked for by OpenAI's fields, the same by both ways."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from server.asking import CHAT, TEXT, error_of, events
from server.dictated import ask_together, chat, dictated

from insitu.llm.guiding import Answering

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
CALLS = [b"<tool_call>", b'{"name": ', b'"add", "argu', b'ments": {"a"', b": 1}}", b"</tool_call>"]
SCRIPT = [b"<think>", b"hm ", b"so", b"</think>", b"\n\nLet me.", *CALLS]
CALLED = {"answering": Answering(tool_parser="hermes")}
READ = {"answering": Answering(tool_parser="hermes", reasoning_parser="think")}


def both_ways(generator: TextGenerator, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chat's choices and usage, after checking that its stream says the same of each choice."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    asked = chat(seed=5, **fields)
    whole, streamed = ask_together(generator, [asked, {**asked, **options}])
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    body = whole.json()
    chunks = events(streamed)
    assert chunks[-1]["usage"] == body["usage"]
    for choice in body["choices"]:
        own = [
            one for chunk in chunks for one in chunk["choices"] if one["index"] == choice["index"]
        ]
        assert _joined(own) == choice["message"]
        assert [one["finish_reason"] for one in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1].get("reasoning_finish") == choice.get("reasoning_finish")
    return body["choices"][0], body["usage"]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a choice's chunks make."""
    deltas = [one["delta"] for one in parts]
    content = "".join(one.get("content") or "" for one in deltas)
    reasoning = "".join(one.get("reasoning_content") or "" for one in deltas)
    calls: list[dict[str, Any]] = []
    for piece in (piece for one in deltas for piece in one.get("tool_calls", [])):
        if piece["index"] == len(calls):
            calls.append({key: piece[key] for key in ("id", "type", "function")})
        else:
            assert set(piece) == {"index", "function"}
            calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
    }
    message |= {"reasoning_content": reasoning} if reasoning else {}
    return message | ({"tool_calls": calls} if calls else {})


def test_reasoning_content_and_calls_have_fields_of_their_own(tmp_path: Path) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        choice, usage = both_ways(generator, tools=[ADD])
        message = choice["message"]
        assert message["reasoning_content"] == "hm so"
        assert message["content"] == "Let me."
        (call,) = message["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
        assert (choice["finish_reason"], choice["reasoning_finish"]) == ("tool_calls", "natural")
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 2}
        assert usage["completion_tokens"] == len(SCRIPT) + 1


@pytest.mark.parametrize("most", range(1, 12))
def test_wherever_max_tokens_cuts_no_half_call_counts(tmp_path: Path, most: int) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        choice, usage = both_ways(generator, tools=[ADD], max_tokens=most)
    assert choice["finish_reason"] == "length"
    assert usage["completion_tokens"] == most


def test_choices_have_readers_of_their_own(tmp_path: Path) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        choice, usage = both_ways(generator, tools=[ADD], n=3)
        assert choice["message"]["tool_calls"]
        assert usage["completion_tokens"] == 3 * (len(SCRIPT) + 1)
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 6}
        _, usage = both_ways(generator, tools=[ADD], n=3, max_tokens=8)
        assert usage["completion_tokens"] == 24


def test_a_budget_is_kept_and_said(tmp_path: Path) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        choice, usage = both_ways(generator, max_reasoning_tokens=1)
        assert choice["message"]["reasoning_content"] == "hm "
        assert choice["reasoning_finish"] == "budget"
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_reasoning_that_nothing_opened_may_be_waited_for(tmp_path: Path) -> None:
    script = [b"plan", b"</think>", b"42"]
    answering = Answering(reasoning_parser="think", unopened_reasoning="reasoning")
    with dictated(tmp_path, script, settings={"answering": answering}) as generator:
        choice, usage = both_ways(generator, max_tokens=20)
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("plan", "42")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 1


def test_one_call_where_calls_are_not_parallel(tmp_path: Path) -> None:
    again = [*CALLS, b" <tool_call>", b'{"name": "add", "arguments": {}}']
    with dictated(tmp_path, again, settings=READ) as generator:
        choice, usage = both_ways(generator, tools=[ADD], parallel_tool_calls=False)
        assert len(choice["message"]["tool_calls"]) == 1
        assert choice["finish_reason"] == "tool_calls"
        assert usage["completion_tokens"] == 5  # the last of them completed it
        choice, _ = both_ways(generator, tools=[ADD])
        assert len(choice["message"]["tool_calls"]) == 2


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_a_required_call_is_made_by_a_model_that_wants_text(tmp_path: Path, choice: Any) -> None:
    with dictated(tmp_path, [b"Only words"], settings=CALLED) as generator:
        answer, _ = both_ways(generator, tools=[ADD], tool_choice=choice, temperature=1)
    assert answer["finish_reason"] == "tool_calls"
    call = answer["message"]["tool_calls"][0]["function"]
    assert call["name"] == "add"
    assert json.loads(call["arguments"])["a"] in range(10)


FIELDS: list[dict[str, Any]] = [
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "strict": True, "schema": {"const": "a"}},
        }
    },
    {"guided_json": {"const": "a"}},
    {"guided_regex": "[a-c]{3}"},
    {"guided_choice": ["yes", "no"]},
    {"guided_grammar": 'start: "lark" "!"'},
    {"guided_grammar": 'root ::= "gbnf"'},
    {"structured_outputs": {"regex": "[a-c]{3}"}},
    {"structured_outputs": {"json": {"const": "a"}}},
]
TEXTS = ['"a"', '"a"', "aaa", "no", "lark!", "gbnf", "aaa", '"a"']


@pytest.mark.parametrize(("fields", "text"), list(zip(FIELDS, TEXTS, strict=True)))
def test_every_way_to_ask_for_a_form_is_followed(
    tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    with dictated(tmp_path, [b"Only words"], settings=CALLED) as generator:
        answer, _ = both_ways(generator, max_tokens=40, **fields)
    assert answer["finish_reason"] == "stop"
    assert answer["message"]["content"] == text


def test_any_object_is_an_object(tmp_path: Path) -> None:
    with dictated(tmp_path, [b"words ", b'{"a"', b": [1, 2]", b"}"], settings=CALLED) as generator:
        wanted = {"type": "json_object"}
        answer, _ = both_ways(generator, response_format=wanted, temperature=1, max_tokens=60)
        content = answer["message"]["content"]
        assert content.startswith("{")
        if answer["finish_reason"] == "stop":
            json.loads(content)


def test_completions_are_guided_too(tmp_path: Path) -> None:
    with dictated(tmp_path, [b"Only words"], settings=CALLED) as generator:
        body = {"model": "tiny", "prompt": "S", "guided_regex": "b{4}", "temperature": 0}
        (answer,) = ask_together(generator, [body], TEXT)
    assert answer.json()["choices"][0]["text"] == "bbbb"
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": {"type": "strng"}}, "guided_json"),
        ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs.grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "nothing"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice",
        ),
    ],
)
def test_refusals_leave_what_runs_unharmed(
    tmp_path: Path, fields: dict[str, Any], param: str
) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        answers = ask_together(generator, [chat(), chat(**fields), chat()])
    assert [one.status_code for one in answers] == [200, 400, 200]
    assert error_of(answers[1])["param"] == param
    first, last = (answers[place].json()["choices"][0]["message"] for place in (0, 2))
    assert first == last


@pytest.mark.parametrize("stop", [["\n\nUser:"], ["\n\nUser:", "</tool"]])
def test_what_a_stop_string_held_back_is_read_like_all_else(
    tmp_path: Path, stop: list[str]
) -> None:
    with dictated(tmp_path, [*SCRIPT, b"\n\nUse"], settings=READ) as generator:
        choice, _ = both_ways(generator, tools=[ADD], stop=stop)
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm so", "Let me.Use")
    assert [one["function"]["arguments"] for one in message["tool_calls"]] == ['{"a": 1}']
    assert choice["finish_reason"] == "tool_calls"


def test_a_stop_string_behind_an_opened_call_loses_nothing_before_it(tmp_path: Path) -> None:
    script = [b"<think>", b"a", b"</think>", b"answer", b"<tool_call>", b"\n\nUser", b": x"]
    with dictated(tmp_path, script, settings=READ) as generator:
        choice, usage = both_ways(generator, tools=[ADD], stop=["\n\nUser:"])
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("a", "answer<tool_call>")
    assert "tool_calls" not in message
    assert choice["finish_reason"] == "stop"
    assert usage["completion_tokens"] == len(script)


def test_choices_that_end_at_different_places_are_kept_apart(tmp_path: Path) -> None:
    with dictated(tmp_path, SCRIPT, settings=READ) as generator:
        # At so high a temperature a script is left at any place, each choice at its own.
        fields = {"n": 3, "temperature": 0.35, "max_tokens": 40, "tools": [ADD]}
        bodies = [chat(**fields, seed=seed) for seed in range(4)]
        options = {"stream": True, "stream_options": {"include_usage": True}}
        asked = [one for body in bodies for one in (body, {**body, **options})]
        answers = ask_together(generator, asked)
    num_lengths = 0
    for whole, streamed in zip(answers[::2], answers[1::2], strict=True):
        body, chunks = whole.json(), events(streamed)
        assert chunks[-1]["usage"] == body["usage"]
        assert [one["index"] for one in body["choices"]] == [0, 1, 2]
        for choice in body["choices"]:
            own = [c for x in chunks for c in x["choices"] if c["index"] == choice["index"]]
            assert _joined(own) == choice["message"]
            assert [one["finish_reason"] for one in own if one["finish_reason"]] == [
                choice["finish_reason"]
            ]
        num_lengths += len({json.dumps(one["message"]) for one in body["choices"]}) > 1
    assert num_lengths


WIDE = "(((a{1,1000}){1,1000}){1,1000})"
TOO_COMPLEX: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"guided_regex": WIDE}, "guided_regex"),
    (TEXT, {"structured_outputs": {"regex": WIDE}}, "structured_outputs.regex"),
    ("/v1/messages", {"guided_regex": WIDE}, "guided_regex"),
]


@pytest.mark.parametrize(("path", "fields", "param"), TOO_COMPLEX)
def test_a_form_that_grows_too_complex_names_its_field_also_in_a_stream(
    tmp_path: Path, path: str, fields: dict[str, Any], param: str
) -> None:
    body: dict[str, Any] = {**chat(max_tokens=100), **fields}
    if path == TEXT:
        body["prompt"] = body.pop("messages")[0]["content"]
    with dictated(tmp_path, [b"a"], is_endless=True, settings=CALLED) as generator:
        whole, streamed = ask_together(generator, [body, {**body, "stream": True}], path)
    assert whole.status_code == 422
    error = whole.json()["error"]
    assert (error["param"], error["code"]) == (param, "grammar_too_complex")
    assert f'"param":"{param}"' in streamed.text
    assert '"finish_reason":"' not in streamed.text
