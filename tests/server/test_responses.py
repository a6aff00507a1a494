"""Responses: items and events as OpenAI's own models read them, and state refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from server.asking import ask_all, error_of, post
from server.scripted_generator import Scripted

from insitu.types import Delta, FinishReason, Message, Prepared, ToolCall, ToolCallPiece, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATH = "/v1/responses"
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **fields}


def streamed(text: str) -> list[dict[str, Any]]:
    """The events of a stream: each names its type twice, and they are counted from 0."""
    events = []
    for part in text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
    return events


class Thinker(Scripted):
    """Reasons, says something, then calls two tools."""

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        yield Delta(token_ids=(1,), reasoning="think")
        yield Delta(token_ids=(2,), reasoning="ing")
        yield Delta(token_ids=(3,), content="so")
        yield Delta(token_ids=(4,), tool_calls=(ToolCallPiece(0, "", "call_a", "look"),))
        yield Delta(token_ids=(5,), tool_calls=(ToolCallPiece(0, '{"x":'),))
        second = ToolCallPiece(1, "{}", "call_b", "see")
        yield Delta(token_ids=(6,), tool_calls=(ToolCallPiece(0, "1}"), second))
        yield Delta(
            finish_reason=FinishReason.TOOL_CALLS,
            usage=Usage(len(prepared.prompt_ids), 6, 2, reasoning_tokens=2),
        )


@pytest.mark.parametrize("generator", [Scripted(), Scripted(text=""), Thinker()])
def test_the_streams_last_event_is_the_whole_answer(generator: Scripted) -> None:
    asked = body(include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=50)
    whole, stream = ask_all(
        [("POST", PATH, {"json": asked}), ("POST", PATH, {"json": {**asked, "stream": True}})],
        generator=generator,
    )
    assert stream.headers["content-type"].startswith("text/event-stream")
    response = whole.json()
    Response.model_validate(response)
    events = streamed(stream.text)
    for event in events:
        EVENTS.validate_python(event)
    assert [one["type"] for one in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert neutral(events[-1]["response"]) == neutral(response)
    done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def neutral(response: dict[str, Any]) -> dict[str, Any]:
    """A response without its times, its id in no other id either."""
    tail = response["id"].removeprefix("resp_")
    text = json.dumps({**response, "created_at": 0, "completed_at": 0})
    answer: dict[str, Any] = json.loads(text.replace(tail, "ID"))
    return answer


def test_deltas_join_to_the_items() -> None:
    events = streamed(post(PATH, body(stream=True), generator=Thinker()).text)
    joined: dict[tuple[str, int], str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            key = event["type"], event["output_index"]
            joined[key] = joined.get(key, "") + event["delta"]
    assert joined == {
        ("response.reasoning_text.delta", 0): "thinking",
        ("response.output_text.delta", 1): "so",
        ("response.function_call_arguments.delta", 2): '{"x":1}',
        ("response.function_call_arguments.delta", 3): "{}",
    }
    output = events[-1]["response"]["output"]
    assert [one["type"] for one in output] == ["reasoning", "message"] + ["function_call"] * 2
    assert [one["call_id"] for one in output[2:]] == ["call_a", "call_b"]
    usage = events[-1]["response"]["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}
    assert (usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]) == (6, 2)


def test_a_limit_makes_it_incomplete() -> None:
    response = post(PATH, body(max_output_tokens=3)).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["output"][0]["content"][0]["text"] == "alp"


def test_a_failure_is_the_last_event() -> None:
    events = streamed(post(PATH, body(stream=True), generator=Scripted(fail_after=2)).text)
    assert events[-1]["type"] == "response.failed"
    EVENTS.validate_python({**events[-1], "response": {**events[-1]["response"], "error": None}})
    error = {"code": "request_failed", "message": "the step failed"}
    assert events[-1]["response"]["error"] == error
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "al"


def test_items_become_messages_in_order() -> None:
    generator = Scripted()
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "m",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "[]"},
        {"type": "function_call_output", "call_id": "c1", "output": "r1"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "r2"}],
        },
        {"role": "developer", "content": [{"type": "input_text", "text": "c"}]},
    ]
    assert post(PATH, body(input=items, instructions="be"), generator=generator).status_code == 200
    calls = (ToolCall("c1", "f", "{}"), ToolCall("c2", "g", "[]"))
    assert generator.asked[0].messages == (
        Message("system", "be"),
        Message("user", "a"),
        Message("assistant", "b", tool_calls=calls, reasoning_content="hm"),
        Message("tool", "r1", tool_call_id="c1"),
        Message("tool", "r2", tool_call_id="c2"),
        Message("system", "c"),
    )


def test_fields_reach_the_generator_under_the_houses_names() -> None:
    generator = Scripted()
    asked = body(
        max_output_tokens=5, temperature=0.5, top_p=0.9, seed=3, top_k=4, stop=["q"], priority=7
    )
    assert post(PATH, asked, generator=generator).status_code == 200
    (request,) = generator.asked
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (5, 0.5, 0.9)
    assert (sampling.seed, sampling.top_k, sampling.stop, request.priority) == (3, 4, ("q",), 7)


def test_without_a_model_the_served_one_answers() -> None:
    assert post(PATH, {"input": "hi"}).json()["model"] == "tiny"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"n": 2}, "n"),
        ({"seed": -1}, "seed"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_is_not_honoured_is_refused_by_its_own_name(
    fields: dict[str, Any], param: str
) -> None:
    response = post(PATH, body(**fields))
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param


def test_a_lenient_request_is_told_what_was_left_out() -> None:
    asked = body(store=True, nonsense=1, text={"verbosity": "low"})
    response = post(PATH, asked, headers={"x-insitu-lenient": "1"})
    assert response.status_code == 200
    warnings = response.json()["warnings"]
    assert len(warnings) == 3
    for name in ("store", "nonsense", "text.verbosity"):
        assert any(f" {name} " in one or f" {name}." in one for one in warnings)
    wrong = post(PATH, body(temperature="hot"), headers={"x-insitu-lenient": "1"})
    assert error_of(wrong)["param"] == "temperature"
    odd = post(PATH, body(), headers={"x-insitu-lenient": "yes"})
    assert error_of(odd)["param"] == "x-insitu-lenient"


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def test_a_format_is_a_guide() -> None:
    generator = Scripted()
    named = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    asked = body(text={"format": named})
    assert post(PATH, asked, generator=generator).status_code == 200
    assert post(PATH, body(guided_regex="a+"), generator=generator).status_code == 200
    guides = [one.guide for one in generator.asked]
    assert [(one.kind, one.value) for one in guides if one] == [
        ("json_schema", SCHEMA),
        ("regex", "a+"),
    ]
