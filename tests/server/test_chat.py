"""Chats: whole answers, streams, errors in the middle, and what the Generator is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from server.asking import CHAT, chat_body, error_of, events, post
from server.scripted_generator import Scripted

from insitu.refusal import Refusal, RequestFailed
from insitu.sampling_params import SamplingParams
from insitu.server.schema_answers import ChatCompletion, ChatCompletionChunk

if TYPE_CHECKING:
    from insitu.types import Message


def test_a_whole_answer_has_openais_shape() -> None:
    fields = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "seed": 5}
    body = post(CHAT, chat_body(max_tokens=3, **fields)).json()
    ChatCompletion.model_validate(body)
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "alp", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["token_ids"] == [97, 108, 112]
    assert body["usage"]["completion_tokens"] == 3
    assert body["seed"] == 5
    assert body["id"].startswith("chatcmpl-")
    first = choice["logprobs"]["content"][0]
    assert (first["token"], first["logprob"], first["bytes"]) == ("a", -0.5, [97])
    assert [top["token"] for top in first["top_logprobs"]] == ["a", "b"]
    assert "warnings" not in body


def test_a_drawn_seed_and_warnings_are_reported() -> None:
    body = post(CHAT, chat_body(), generator=Scripted(warnings=("mind this",))).json()
    assert body["seed"] == 7
    assert body["warnings"] == ["mind this"]


@pytest.mark.parametrize(
    ("text", "max_tokens", "finish"),
    [("alpha", 100, "stop"), ("alpha", 2, "length"), ("", 9, "stop")],
)
def test_a_stream_has_role_one_finish_and_done(text: str, max_tokens: int, finish: str) -> None:
    body = chat_body(stream=True, max_tokens=max_tokens, logprobs=True, return_token_ids=True)
    response = post(CHAT, body, generator=Scripted(text=text))
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert "usage" not in chunk
    assert chunks[0]["choices"][0]["delta"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
    }
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [finish]
    said = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert said == text[:max_tokens]
    ids = [i for chunk in chunks for i in chunk["choices"][0].get("token_ids", [])]
    assert ids == list(map(ord, said))
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["seed"] == 7


def test_usage_comes_in_a_chunk_of_its_own() -> None:
    body = chat_body(stream=True, stream_options={"include_usage": True})
    chunks = events(post(CHAT, body))
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len("alpha beta")


def test_a_stream_equals_the_whole() -> None:
    whole = post(CHAT, chat_body()).json()["choices"][0]["message"]["content"]
    chunks = events(post(CHAT, chat_body(stream=True)))
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in chunks) == whole


def test_a_failure_in_the_middle_is_an_error_event_and_no_stop() -> None:
    generator = Scripted(fail_after=3)
    chunks = events(post(CHAT, chat_body(stream=True), generator=generator))
    assert chunks[-1]["error"]["type"] == "server_error"
    assert chunks[-1]["error"]["message"] == "the step failed"
    reasons = [one["choices"][0]["finish_reason"] for one in chunks if "choices" in one]
    assert set(reasons) == {None}
    assert len(generator.closed) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestFailed("no"), 500),
        (KeyError("secret prompt"), 500),
        (Refusal("full", status=429, code="too_busy", retry_after_s=2), 429),
    ],
)
def test_a_failure_before_the_first_token_keeps_its_status(
    stream: bool, error: Exception, status: int
) -> None:
    generator = Scripted(fail_after=0, error=error)
    response = post(CHAT, chat_body(stream=stream), generator=generator)
    if stream and response.status_code == 200:
        pytest.fail("headers went out before the refusal")
    assert response.status_code == status
    assert "secret" not in error_of(response)["message"]
    assert len(generator.closed) == 1
    if status == 429:
        assert response.headers["retry-after"] == "2"


def asked(messages: list[dict[str, Any]], **fields: Any) -> tuple[Message, ...]:
    generator = Scripted()
    response = post(CHAT, chat_body(messages=messages, **fields), generator=generator)
    assert response.status_code == 200, response.text
    messages_asked = generator.asked[0].messages
    assert messages_asked is not None
    return messages_asked


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_are_the_joined_text(role: str) -> None:
    more = {"tool_call_id": "c1"} if role == "tool" else {}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    joined = asked([{"role": role, "content": "ab", **more}])
    assert asked([{"role": role, "content": parts, **more}]) == joined
    empty = asked([{"role": role, "content": "", **more}])
    assert asked([{"role": role, "content": [], **more}]) == empty
    assert asked([{"role": role, "content": [{"type": "text", "text": ""}], **more}]) == empty


def test_a_history_with_tool_calls_is_passed_on() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = asked(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
        ]
    )
    assert messages[0].role == "system"
    assert messages[1].tool_calls[0].name == "f"
    assert messages[1].content is None
    assert messages[2].tool_call_id == "c1"


def test_nul_is_kept_whole() -> None:
    messages = asked(
        [{"role": "user", "content": "alpha\0omega"}, {"role": "user", "content": "t"}]
    )
    assert messages[0].content == "alpha\0omega"
    assert asked([{"role": "user", "content": "x"}], stop=["\0"])


def test_sampling_reaches_the_generator() -> None:
    generator = Scripted()
    fields = {"temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "stop": ["x", "y"]}
    more = {
        "stop_token_ids": [4],
        "ignore_eos": True,
        "max_completion_tokens": 9,
        "seed": 2**64 - 1,
    }
    assert post(CHAT, chat_body(**fields, **more), generator=generator).status_code == 200
    sampling = generator.asked[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0, 0.5, 3)
    assert (sampling.min_p, sampling.stop, sampling.stop_token_ids) == (0.1, ("x", "y"), (4,))
    assert (sampling.ignore_eos, sampling.max_tokens, sampling.seed) == (True, 9, 2**64 - 1)
    assert sampling.logprobs is None


def test_every_way_of_choosing_reaches_the_generator() -> None:
    generator = Scripted()
    fields: dict[str, Any] = {
        "typical_p": 0.9, "top_n_sigma": 1.5, "xtc_probability": 0.5, "xtc_threshold": 0.2,
        "repetition_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0.5,
        "penalty_last_n": 64, "dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3,
        "dry_last_n": 512, "dry_sequence_breakers": ["!"], "bad_words": ["no"], "min_tokens": 2,
        "sampling_preset": "llama.cpp", "logprobs_mode": "processed",
    }  # fmt: skip
    body = chat_body(**fields, logit_bias={"5": 1.5, "07": -100})
    assert post(CHAT, body, generator=generator).status_code == 200
    sampling = generator.asked[0].sampling
    assert sampling == SamplingParams(
        **fields, logit_bias={5: 1.5, 7: -100}, max_tokens=sampling.max_tokens
    )


def test_max_tokens_absent_means_to_the_end_of_the_context() -> None:
    generator = Scripted()
    post(CHAT, chat_body(max_tokens=None), generator=generator)
    assert generator.asked[0].sampling.max_tokens is None
