"""Every wrong field is refused by name; every neutral one is accepted; nothing else passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.asking import CHAT, TEXT, ask, ask_all, chat_body, error_of, post, text_body
from server.scripted_generator import Scripted

WRONG_CHAT: list[tuple[str, Any]] = [
    ("stream", "false"),
    ("stream", 1),
    ("max_tokens", "256"),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 1.5),
    ("max_tokens", 1.0),
    ("max_tokens", True),
    ("max_tokens", 2**63),
    ("n", 129),
    ("n", 2.5),
    ("n", True),
    ("n", 0),
    ("temperature", []),
    ("temperature", -0.1),
    ("temperature", True),
    ("temperature", "1"),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", -1),
    ("min_p", 2),
    ("seed", -1),
    ("seed", 2**64),
    ("seed", 1.0),
    ("messages", {}),
    ("messages", "hi"),
    ("messages", []),
    ("messages", None),
    ("stop", 5),
    ("stop", ""),
    ("stop", ["a"] * 17),
    ("stop", [1]),
    ("stop", "a" * 1025),
    ("stop", ["a" * 1025]),
    ("model", 1),
    ("model", None),
    ("logprobs", 1),
    ("top_logprobs", 21),
    ("top_logprobs", 2),
    ("user", 5),
    ("metadata", []),
    ("tools", {}),
    ("tools", [{"type": "custom", "custom": {"name": "f"}}]),
    ("tools", [{"type": "function", "function": {"name": "not a name"}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": []}}]),
    ("tools", [{"type": "function", "function": {"name": "f"}}] * 129),
    ("tool_choice", "any"),
    ("tool_choice", {"type": "allowed_tools"}),
    ("parallel_tool_calls", "no"),
    ("reasoning_effort", "extreme"),
    ("max_reasoning_tokens", -1),
    ("max_reasoning_tokens", 1.5),
    ("response_format", {"type": "xml"}),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "", "schema": {}}}),
    ("guided_json", "{}"),
    ("guided_choice", []),
    ("guided_regex", ["a"]),
    ("structured_outputs", {"xml": "a"}),
    ("stream_options", {"include_usage": True}),
    ("chat_template", "{{ x }}"),
    ("chat_template_kwargs", {"chat_template": "x"}),
    ("chat_template_kwargs", {"messages": []}),
    ("chat_template_kwargs", {"loop": 1}),
    ("chat_template_kwargs", {"not a name": 1}),
    ("chat_template_kwargs", {"add_generation_prompt": False}),
]

UNKNOWN_CHAT: list[tuple[str, Any]] = [
    ("frobnicate", 1),
    ("echo", True),
    ("best_of", 2),
    ("grammar", "root ::= x"),
    ("include_reasoning", True),
    ("thinking", {"type": "enabled", "budget_tokens": 5}),
    ("continue_final_message", True),
    ("cache_salt", 7),
    ("cache_salt", ""),
    ("priority", 1001),
    ("priority", "high"),
    ("cache_prompt", True),
    ("n_keep", 200),
    ("draft_model", "x"),
]

REFUSED_CHAT: list[tuple[str, Any]] = [
    ("functions", [{}]),
    ("function_call", "auto"),
    ("audio", {"voice": "x", "format": "mp3"}),
    ("modalities", ["text", "audio"]),
    ("prediction", {"type": "content", "content": "x"}),
    ("web_search_options", {}),
    ("store", True),
    ("store", 0),
    ("service_tier", "flex"),
    ("verbosity", "low"),
    ("prompt_cache_retention", "24h"),
    ("moderation", {}),
    ("prompt_cache_options", {}),
]

NEUTRAL_CHAT: list[tuple[str, Any]] = [
    ("n", 1),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("logit_bias", {}),
    ("tools", []),
    ("tool_choice", "none"),
    ("response_format", {"type": "text"}),
    ("modalities", ["text"]),
    ("store", False),
    ("service_tier", "auto"),
    ("service_tier", "default"),
    ("user", "someone"),
    ("metadata", {"a": "b"}),
    ("safety_identifier", "x"),
    ("prompt_cache_key", "x"),
    ("parallel_tool_calls", True),
    ("top_p", 1),
    ("max_completion_tokens", 5),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("stop", "a"),
]


@pytest.mark.parametrize(("field", "value"), [*WRONG_CHAT, *UNKNOWN_CHAT])
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    generator = Scripted()
    response = post(CHAT, chat_body(**{field: value}), generator=generator)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"].split("[")[0].split(".")[0] == field
    assert not generator.asked


@pytest.mark.parametrize(("field", "value"), REFUSED_CHAT)
def test_what_is_not_implemented_is_refused_by_name(field: str, value: Any) -> None:
    response = post(CHAT, chat_body(**{field: value}))
    assert response.status_code == 400
    error = error_of(response)
    assert (error["param"], error["code"]) == (field, "unsupported_parameter")
    assert field in error["message"]


@pytest.mark.parametrize(("field", "value"), NEUTRAL_CHAT)
def test_what_asks_nothing_is_accepted(field: str, value: Any) -> None:
    assert post(CHAT, chat_body(**{field: value})).status_code == 200


def test_null_means_absent() -> None:
    fields = {field for field, _ in [*WRONG_CHAT, *REFUSED_CHAT, *NEUTRAL_CHAT]}
    fields -= {"messages", "model", "chat_template"}
    assert post(CHAT, chat_body(**dict.fromkeys(fields))).status_code == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 0),
        ("best_of", 129),
        ("echo", 0),
        ("suffix", "x"),
        ("n", 129),
        ("logit_bias", {"x": 2}),
    ],
)
def test_completions_refuse_by_name(field: str, value: Any) -> None:
    response = post(TEXT, text_body(**{field: value}))
    assert response.status_code == 400
    assert error_of(response)["param"] == field


@pytest.mark.parametrize(
    ("field", "value"), [("logprobs", True), ("logprobs", 21), ("messages", []), ("max_tokens", 0)]
)
def test_completions_name_wrong_fields(field: str, value: Any) -> None:
    response = post(TEXT, text_body(**{field: value}))
    assert (response.status_code, error_of(response)["param"]) == (400, field)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": "x", "extra": 1}, "messages[0].extra"),
        ({"role": "tool", "content": "x"}, "messages[0].tool_call_id"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]},
            "messages[0].content[0].type",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "odd"}]},
            "messages[0].content[1].type",
        ),
        ("hi", "messages[0]"),
        *(
            ({"role": "user", "content": [{"type": kind, kind: {}}]}, "messages[0].content[0].type")
            for kind in ("image_url", "input_image", "image", "input_audio", "file", "video_url")
        ),
    ],
)
def test_a_wrong_message_is_named_by_its_path(message: Any, param: str) -> None:
    response = post(CHAT, chat_body(messages=[message]))
    assert (response.status_code, error_of(response)["param"]) == (400, param)


def test_both_limits_must_agree() -> None:
    assert post(CHAT, chat_body(max_tokens=3, max_completion_tokens=3)).status_code == 200
    response = post(CHAT, chat_body(max_tokens=3, max_completion_tokens=4))
    assert error_of(response)["param"] == "max_completion_tokens"


def test_deep_and_long_kwargs_are_refused() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    response = post(CHAT, chat_body(chat_template_kwargs={"x": deep}))
    assert error_of(response)["param"] == "chat_template_kwargs"


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"]
)
def test_other_content_types_are_415(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = ask("POST", TEXT, content=json.dumps(text_body()), headers=headers)
    assert response.status_code == 415
    error_of(response)


def test_charset_and_compression() -> None:
    body = json.dumps(text_body()).encode()
    headers = {"content-type": "application/json; charset=UTF-8"}
    assert ask("POST", TEXT, content=body, headers=headers).status_code == 200
    headers = {"content-type": "application/json; charset=latin-1"}
    assert ask("POST", TEXT, content=body, headers=headers).status_code == 415
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert ask("POST", TEXT, content=body, headers=headers).status_code == 415


def test_errors_repeat_little_of_the_input() -> None:
    long = "q" * 5000
    bodies: list[dict[str, Any]] = [
        chat_body(**{long: 1}),
        chat_body(model=long),
        chat_body(tool_choice=long),
        chat_body(messages=[{"role": long, "content": "x"}]),
        chat_body(messages=[{"role": "user", "content": "x", long: 1}]),
        chat_body(response_format={"type": long}),
        chat_body(stop={long: long}),
        chat_body(chat_template_kwargs={"tools": long}),
    ]
    for body in bodies:
        response = post(CHAT, body)
        assert 400 <= response.status_code < 500
        assert response.text.count("q") < 200
    twice = f'{{"{long}":1,"{long}":2}}'.encode()
    assert post(CHAT, twice).text.count("q") < 300


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "..%2f..%2f", "/etc/passwd", "a\nb", "tiny\0", "tiny ", ""]
)
def test_models_are_found_by_name_only(name: str) -> None:
    response = post(TEXT, text_body(model=name))
    assert response.status_code == 404
    error = error_of(response)
    assert error["code"] == "model_not_found"
    assert error == error_of(post(TEXT, text_body(model="absent")))


def test_models_are_listed_and_retrieved() -> None:
    listed, one, alias, absent = ask_all(
        [
            ("GET", "/v1/models", {}),
            ("GET", "/v1/models/tiny", {}),
            ("GET", "/v1/models/tiny-alias", {}),
            ("GET", "/v1/models/..%2f..%2fetc", {}),
        ]
    )
    assert listed.json()["data"] == [one.json()]
    assert alias.json()["id"] == "tiny-alias"
    assert (absent.status_code, error_of(absent)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", TEXT, 405),
        ("DELETE", "/v1/models", 405),
        ("OPTIONS", CHAT, 405),
        ("GET", "/", 404),
        ("GET", "/V1/models", 404),
        ("GET", "/v1/models/", 404),
        ("POST", CHAT + "/", 404),
        ("GET", "/v1/unknown", 404),
    ],
)
def test_other_methods_and_paths(method: str, path: str, status: int) -> None:
    response = ask(method, path)
    assert response.status_code == status
    error_of(response)
    if status == 405:
        assert "allow" in response.headers


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/tiny", "/metrics", CHAT])
def test_no_path_ends_with_a_line_feed(path: str) -> None:
    method = "POST" if path == CHAT else "GET"
    response = ask(method, path + "%0a", json=chat_body() if path == CHAT else None)
    assert response.status_code == 404
    if path == "/v1/models/tiny":
        assert error_of(response) == error_of(ask("GET", "/v1/models/absent"))


@pytest.mark.parametrize("path", ["images/generations", "audio/speech", "rerank"])
def test_what_is_not_built_is_not_found(path: str) -> None:
    response = ask("POST", f"/v1/{path}", json={"model": "tiny", "input": "x"})
    assert (response.status_code, error_of(response)["code"]) == (404, "not_found")


def test_head_answers_without_a_body_of_its_own() -> None:
    assert ask("HEAD", "/v1/models").status_code == 200
