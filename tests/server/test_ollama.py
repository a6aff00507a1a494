"""Ollama's API: lines as its own client reads them, options under their names, durations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import ollama
import pytest
from server.asking import ask, ask_all, post
from server.scripted_generator import Scripted
from server.test_messages import Cut
from server.test_responses import Thinker

from insitu.types import Message, Reasoning, ToolCall

if TYPE_CHECKING:
    import httpx

CHAT, GENERATE = "/api/chat", "/api/generate"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert response.text.endswith("\n")
    return [json.loads(line) for line in response.text.splitlines()]


@pytest.mark.parametrize("generator", [Scripted(), Scripted(text=""), Thinker(), Cut()])
def test_joined_lines_are_the_whole_answer(generator: Scripted) -> None:
    whole, stream = ask_all(
        [("POST", CHAT, {"json": body(stream=False)}), ("POST", CHAT, {"json": body()})],
        generator=generator,
    )
    answer = whole.json()
    ollama.ChatResponse.model_validate(answer)
    parts = lines(stream)
    for part in parts:
        ollama.ChatResponse.model_validate(part)
    assert [one["done"] for one in parts] == [False] * (len(parts) - 1) + [True]
    said = [one["message"] for one in parts]
    message = answer["message"]
    assert "".join(one["content"] for one in said) == message["content"]
    assert "".join(one.get("thinking", "") for one in said) == message.get("thinking", "")
    calls = [call for one in said for call in one.get("tool_calls", [])]
    assert calls == message.get("tool_calls", [])
    for name in ("done_reason", "prompt_eval_count", "eval_count", "seed"):
        assert parts[-1][name] == answer[name]


def test_thinking_and_calls_are_fields_of_the_message() -> None:
    message = post(CHAT, body(stream=False), generator=Thinker()).json()["message"]
    assert (message["content"], message["thinking"]) == ("so", "thinking")
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": "look", "arguments": {"x": 1}},
        {"name": "see", "arguments": {}},
    ]


def test_durations_are_nanoseconds_and_add_up() -> None:
    answer = post(CHAT, body(stream=False), generator=Scripted(gap_s=0.001)).json()
    parts = answer["prompt_eval_duration"] + answer["eval_duration"]
    assert 0 < answer["prompt_eval_duration"] < answer["total_duration"]
    assert 9_000_000 <= answer["eval_duration"] < parts <= answer["total_duration"]
    assert (answer["eval_count"], answer["done_reason"]) == (10, "stop")


def test_a_prompt_is_answered_and_a_raw_one_continued() -> None:
    generator = Scripted()
    plain = {"model": "tiny", "prompt": "hi", "system": "be", "stream": False}
    raw = {"model": "tiny", "prompt": "hi", "raw": True, "options": {"num_predict": 2}}
    first, second = ask_all(
        [("POST", GENERATE, {"json": plain}), ("POST", GENERATE, {"json": raw})],
        generator=generator,
    )
    assert ollama.GenerateResponse.model_validate(first.json()).response == "alpha beta"
    assert [one["response"] for one in lines(second)] == ["a", "l", ""]
    assert lines(second)[-1]["done_reason"] == "length"
    asked, continued = generator.asked
    assert asked.messages == (Message("system", "be"), Message("user", "hi"))
    assert (continued.messages, continued.prompt, continued.parse_special) == (None, "hi", True)
    assert continued.sampling.max_tokens == 2


def test_fields_reach_the_generator_under_the_houses_names() -> None:
    generator = Scripted()
    options = {
        "num_predict": 5,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["q"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = body(options=options, think=False, tools=[tool], priority=7, keep_alive="5m")
    assert post(CHAT, asked, generator=generator).status_code == 200
    (request,) = generator.asked
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (5, 0.5, 4)
    assert (sampling.top_p, sampling.min_p, sampling.seed, sampling.stop) == (0.9, 0.1, 3, ("q",))
    assert (request.priority, request.reasoning) == (7, Reasoning(effort="none"))
    assert request.tools == (tool,)


def test_calls_without_ids_are_answered_in_order() -> None:
    generator = Scripted()
    call = {"function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call, call]},
        {"role": "tool", "content": "r1", "tool_name": "f"},
        {"role": "tool", "content": "r2"},
    ]
    assert post(CHAT, body(messages=messages), generator=generator).status_code == 200
    calls = (ToolCall("call_1_0", "f", '{"x": 1}'), ToolCall("call_1_1", "f", '{"x": 1}'))
    assert generator.asked[0].messages == (
        Message("user", "a"),
        Message("assistant", "", tool_calls=calls, reasoning_content="hm"),
        Message("tool", "r1", name="f", tool_call_id="call_1_0"),
        Message("tool", "r2", tool_call_id="call_1_1"),
    )


def test_a_smaller_context_is_kept_to() -> None:
    answer = post(CHAT, body(stream=False, options={"num_ctx": 12})).json()
    assert (answer["eval_count"], answer["done_reason"]) == (4, "length")
    for options in ({"num_ctx": 513}, {"num_ctx": 8}, {"num_ctx": 12, "num_predict": 5}):
        refused = post(CHAT, body(options=options))
        assert (refused.status_code, refused.json()["param"]) == (400, "options.num_ctx")


def test_without_a_prompt_the_model_is_there() -> None:
    for path in (CHAT, GENERATE):
        answer = post(path, {"model": "tiny:latest"}).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")


def test_what_is_served_is_listed_and_shown() -> None:
    (model,) = ollama.ListResponse.model_validate(ask("GET", "/api/tags").json()).models
    assert (model.model, model.size) == ("tiny", 1)
    ollama.ProcessResponse.model_validate(ask("GET", "/api/ps").json())
    shown = ollama.ShowResponse.model_validate(post("/api/show", {"model": "tiny"}).json())
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 512
    assert ask("GET", "/api/version").json()["version"]
    assert post("/api/show", {"model": "other"}).status_code == 404


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"keep_alive": 0}, "keep_alive"),
        (CHAT, {"keep_alive": "0s"}, "keep_alive"),
        (CHAT, {"keep_alive": "soon"}, "keep_alive"),
        (CHAT, {"options": {"num_gpu": 1}}, "options.num_gpu"),
        (CHAT, {"options": {"num_predict": 10_000}}, "options.num_predict"),
        (CHAT, {"options": {"seed": -1}}, "options.seed"),
        (CHAT, {"messages": [{"role": "user", "images": ["aGk="]}]}, "messages[0].images"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function"),
        (CHAT, {"n": 2}, "n"),
        (CHAT, {"nonsense": 1}, "nonsense"),
        (GENERATE, {"suffix": "x"}, "suffix"),
        (GENERATE, {"template": "x"}, "template"),
        (GENERATE, {"context": [1]}, "context"),
        (GENERATE, {"raw": True, "prompt": "x", "system": "be"}, "system"),
        ("/api/embed", {"input": []}, "input"),
        ("/api/embed", {"input": ["a", 5]}, "input"),
        ("/api/embed", {}, "input"),
        ("/api/embed", {"input": "x", "keep_alive": 0}, "keep_alive"),
        ("/api/embed", {"input": "x", "options": {"temperature": 0.5}}, "options.temperature"),
        ("/api/embed", {"input": "x", "options": {"num_ctx": 1000}}, "options.num_ctx"),
        ("/api/embeddings", {"prompt": "x", "input": "x"}, "input"),
        ("/api/embeddings", {"prompt": ["x"]}, "prompt"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_own_name(
    path: str, fields: dict[str, Any], param: str
) -> None:
    asked = {**body(), **fields} if path == CHAT else {"model": "tiny", **fields}
    response = post(path, asked)
    assert response.status_code == 400, response.text
    failure = response.json()
    assert set(failure) == {"error", "param", "code"}
    assert failure["param"] == param


def test_a_failure_is_a_line_and_nothing_is_done() -> None:
    parts = lines(post(CHAT, body(), generator=Scripted(fail_after=2)))
    assert parts[-1] == {"error": "the step failed", "param": None, "code": "request_failed"}
    assert not any(one.get("done") for one in parts)


def test_a_format_is_a_guide() -> None:
    generator = Scripted()
    for wanted in ("json", {"type": "object"}, ""):
        assert post(CHAT, body(format=wanted), generator=generator).status_code == 200
    guides = [one.guide for one in generator.asked]
    assert [one and (one.kind, one.value) for one in guides] == [
        ("json_object", None),
        ("json_schema", {"type": "object"}),
        None,
    ]
