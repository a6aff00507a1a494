"""Messages: blocks and events as Anthropic's own models read them, errors in its form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter
from server.asking import ask, ask_all, post
from server.scripted_generator import Scripted
from server.test_responses import Thinker

from insitu.server.options import ServerOptions
from insitu.types import (
    Caller,
    Delta,
    FinishReason,
    Message,
    Prepared,
    Reasoning,
    ToolCall,
    ToolCallPiece,
    ToolChoice,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

PATH = "/v1/messages"
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "tiny", "messages": messages, "max_tokens": 50, **fields}


def streamed(text: str) -> list[dict[str, Any]]:
    events = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def failure(response: httpx.Response) -> dict[str, Any]:
    """The error of a failure, checked for its form."""
    answer = response.json()
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    assert answer["request_id"] == response.headers["x-request-id"]
    error: dict[str, Any] = answer["error"]
    return error


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events add up to."""
    assert events[0]["type"] == "message_start"
    assert events[-1] == {"type": "message_stop"}
    message = events[0]["message"]
    texts: dict[int, str] = {}
    for event in events[1:-1]:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta = {**event["delta"]}
            kind = delta.pop("type")
            ((name, text),) = delta.items()
            if kind == "input_json_delta":
                texts[event["index"]] = texts.get(event["index"], "") + text
            else:
                message["content"][event["index"]][name] += text
        elif event["type"] == "message_delta":
            message |= event["delta"]
            message["usage"] |= event["usage"]
    for index, text in texts.items():
        message["content"][index]["input"] = json.loads(text)
    assert isinstance(message, dict)
    return message


@pytest.mark.parametrize("generator", [Scripted(), Scripted(text=""), Thinker()])
def test_a_streams_events_add_up_to_the_whole_answer(generator: Scripted) -> None:
    whole, stream = ask_all(
        [("POST", PATH, {"json": body()}), ("POST", PATH, {"json": body(stream=True)})],
        generator=generator,
    )
    message = whole.json()
    AnthropicMessage.model_validate(message)
    events = streamed(stream.text)
    for event in events:
        if event["type"] != "ping":
            EVENTS.validate_python(event)
    assert {**rebuilt(events), "id": ""} == {**message, "id": ""}


def test_thinking_text_and_calls_are_blocks() -> None:
    message = post(PATH, body(), generator=Thinker()).json()
    assert message["content"] == [
        {"type": "thinking", "thinking": "thinking", "signature": ""},
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "call_a", "name": "look", "input": {"x": 1}},
        {"type": "tool_use", "id": "call_b", "name": "see", "input": {}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 2,
        "cache_creation_input_tokens": 0,
        "output_tokens": 6,
        "output_tokens_details": {"thinking_tokens": 2},
    }


class Stopper(Scripted):
    """Ends at a stop string."""

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        yield Delta(token_ids=(1,), content="a")
        usage = Usage(len(prepared.prompt_ids), 2)
        yield Delta(finish_reason=FinishReason.STOP, usage=usage, stop="END")


class Cut(Scripted):
    """Is cut inside a call's arguments."""

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        yield Delta(token_ids=(1,), tool_calls=(ToolCallPiece(0, '{"x": [1', "c", "f"),))
        yield Delta(finish_reason=FinishReason.LENGTH, usage=Usage(len(prepared.prompt_ids), 1))


def test_how_an_answer_ended_is_said() -> None:
    natural = post(PATH, body()).json()
    assert (natural["stop_reason"], natural["stop_sequence"]) == ("end_turn", None)
    limited = post(PATH, body(max_tokens=3)).json()
    assert (limited["stop_reason"], limited["stop_sequence"]) == ("max_tokens", None)
    stopped = post(PATH, body(stop_sequences=["END"]), generator=Stopper()).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "END")


def test_arguments_that_were_cut_are_no_empty_call() -> None:
    message = post(PATH, body(), generator=Cut()).json()
    assert message["stop_reason"] == "max_tokens"
    (block,) = message["content"]
    assert (block["input"], block["partial_json"]) == ({}, '{"x": [1')


def test_blocks_become_messages_in_order() -> None:
    generator = Scripted()
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "r", "is_error": True},
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "be"}]
    answer = post(PATH, body(messages=messages, system=system), generator=generator)
    assert generator.asked[0].messages == (
        Message("system", "be"),
        Message("user", "ab"),
        Message(
            "assistant", "c", tool_calls=(ToolCall("t1", "f", '{"x": 1}'),), reasoning_content="hm"
        ),
        Message("tool", "r", tool_call_id="t1"),
        Message("user", "d"),
    )
    assert "messages[2].content[0].is_error" in answer.json()["warnings"][0]


def test_fields_reach_the_generator_under_the_houses_names() -> None:
    generator = Scripted()
    asked = body(
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["q"],
        thinking={"type": "enabled", "budget_tokens": 9},
        tools=[{"name": "f", "input_schema": {"type": "object"}, "description": "does"}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        seed=3,
    )
    assert post(PATH, asked, generator=generator).status_code == 200
    (request,) = generator.asked
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (50, 0.5, 0.9)
    assert (sampling.seed, sampling.top_k, sampling.stop) == (3, 4, ("q",))
    assert request.reasoning == Reasoning(max_tokens=9)
    assert request.tool_choice == ToolChoice("required", "f", is_parallel=False)
    function = {"name": "f", "parameters": {"type": "object"}, "description": "does"}
    assert request.tools == ({"type": "function", "function": function},)


def test_disabled_thinking_is_no_effort() -> None:
    generator = Scripted()
    post(PATH, body(thinking={"type": "disabled"}), generator=generator)
    assert generator.asked[0].reasoning == Reasoning(effort="none")


def test_tokens_are_counted_without_running() -> None:
    generator = Scripted()
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "system": "be"}
    answer = post(f"{PATH}/count_tokens", asked, generator=generator)
    whole = post(PATH, body(system="be"))
    assert answer.json() == {"input_tokens": whole.json()["usage"]["input_tokens"]}
    assert generator.callers == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"n": 2}, "n"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_own_name(
    fields: dict[str, Any], param: str
) -> None:
    response = post(PATH, body(**fields))
    assert response.status_code == 400, response.text
    error = failure(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_failures_have_this_protocols_form_wherever_they_happen() -> None:
    unknown = post(PATH, body(model="other"))
    assert (unknown.status_code, failure(unknown)["type"]) == (404, "not_found_error")
    assert failure(ask("GET", PATH))["code"] == "method_not_allowed"
    assert failure(ask("GET", f"{PATH}/nothing"))["type"] == "not_found_error"
    options = ServerOptions(authenticate=lambda key: Caller("acme") if key == "right" else None)
    stranger = post(PATH, body(), options=options, headers={"x-api-key": "wrong"})
    assert (stranger.status_code, failure(stranger)["type"]) == (401, "authentication_error")
    both = {"x-api-key": "right", "authorization": "Bearer wrong"}
    assert post(PATH, body(), options=options, headers=both).status_code == 401
    assert post(PATH, body(), options=options, headers={"x-api-key": "right"}).status_code == 200
    failed = post(PATH, body(), generator=Scripted(fail_after=1))
    assert (failed.status_code, failure(failed)["type"]) == (500, "api_error")
    events = streamed(post(PATH, body(stream=True), generator=Scripted(fail_after=1)).text)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["code"] == "request_failed"
    assert "message_stop" not in [one["type"] for one in events]


def test_models_have_this_protocols_form_for_its_clients() -> None:
    headers = {"anthropic-version": "2023-06-01"}
    page = ask("GET", "/v1/models", headers=headers).json()
    ModelInfo.model_validate(page["data"][0])
    assert (page["first_id"], page["last_id"], page["has_more"]) == ("tiny", "tiny", False)
    one = ask("GET", "/v1/models/tiny-alias", headers=headers).json()
    assert ModelInfo.model_validate(one).id == "tiny-alias"


def test_a_format_is_a_guide() -> None:
    generator = Scripted()
    config = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    assert post(PATH, body(output_config=config), generator=generator).status_code == 200
    guide = generator.asked[0].guide
    assert guide is not None
    assert (guide.kind, guide.value) == ("json_schema", {"type": "object"})
