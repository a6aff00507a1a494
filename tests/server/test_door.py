"""Guard, keys, cross-origin rules, bodies' bounds, health, log lines and counting."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from server.asking import (
    BASE,
    CHAT,
    TEXT,
    ask,
    ask_all,
    chat_body,
    chat_scope,
    error_of,
    post,
    text_body,
)
from server.scripted_generator import Scripted

from insitu.refusal import Refusal, RequestFailed
from insitu.server.app import create_app, routes
from insitu.server.operations import OPERATIONS
from insitu.server.options import ServerOptions
from insitu.server.paths import PLACES, Access
from insitu.server.schema_answers import ModelAnswer
from insitu.types import Caller, FinishReason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.applications import Starlette

KEYS = ServerOptions(authenticate=lambda key: Caller("acme") if key == "right" else None)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9000", 200),
        ("LOCALHOST:8000", 200),
        ("mine.example", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("127.0.0.1@evil.example", 403),
        ("localhost:x", 403),
        ("", 403),
    ],
)
def test_a_private_server_answers_to_its_own_names(host: str, status: int) -> None:
    options = ServerOptions(allowed_hosts=("mine.example",))
    for path in ("/v1/models", "/health", "/nothing"):
        response = ask("GET", path, options=options, headers={"host": host})
        assert (response.status_code == 403) == (status == 403)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (BASE, 200),
        ("https://page.example", 200),
        ("https://evil.example", 403),
        ("http://127.0.0.1:3000", 403),
        ("null", 403),
    ],
)
def test_a_private_server_refuses_foreign_pages(origin: str, status: int) -> None:
    options = ServerOptions(cors_origins=("https://page.example",))
    response = ask("GET", "/v1/models", options=options, headers={"origin": origin})
    assert response.status_code == status
    allowed = response.headers.get("access-control-allow-origin")
    assert allowed == (origin if origin == "https://page.example" else None)


def test_preflights_are_answered_for_named_origins_only() -> None:
    options = ServerOptions(cors_origins=("https://page.example",), authenticate=KEYS.authenticate)
    headers = {"access-control-request-method": "POST", "origin": "https://page.example"}
    response = ask("OPTIONS", CHAT, options=options, headers=headers)
    assert response.status_code == 204
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    response = ask("OPTIONS", CHAT, options=options, headers={**headers, "origin": "https://x.y"})
    assert response.status_code == 401
    assert "access-control-allow-origin" not in response.headers


def test_the_table_of_paths_is_the_routers_own_list() -> None:
    of_router = {route.path.replace(":path}", "}") for route in routes()}
    assert {place.template for place in PLACES} == of_router


def test_every_route_but_health_needs_a_key() -> None:
    is_open = [place.template for place in PLACES if place.access is Access.OPEN]
    assert is_open == ["/health", "/health/ready", "/health/live"]
    for route in routes():
        path = re.sub(r"\{.*?\}", "tiny", route.path)
        for method in ("GET", "POST", "DELETE"):
            for presented in (None, "wrong", "Bearer wrong", "Basic right", "Bearer"):
                headers = {} if presented is None else {"authorization": presented}
                response = ask(method, path, options=KEYS, headers=headers)
                if path in is_open:
                    assert response.status_code != 401
                else:
                    assert response.status_code == 401
                    assert "key is needed" in response.text


@pytest.mark.parametrize(
    "path",
    ["/health/", "//health", "/health/../v1/models", "/HEALTH", "/v1/models/", "//v1/models"],
)
def test_no_spelling_of_a_path_gets_round_the_key(path: str) -> None:
    assert ask("GET", path, options=KEYS).status_code == 401


def test_the_right_key_is_let_in_and_named() -> None:
    generator = Scripted()
    headers = {"authorization": "bearer right"}
    response = post(CHAT, chat_body(), generator=generator, options=KEYS, headers=headers)
    assert response.status_code == 200
    assert generator.callers == [Caller("acme")]


def test_without_keys_any_authorization_is_accepted() -> None:
    assert ask("GET", "/v1/models", headers={"authorization": "Bearer x"}).status_code == 200


def test_the_body_limit_is_exact() -> None:
    body = json.dumps(text_body()).encode()
    options = ServerOptions(max_body_bytes=len(body))
    assert post(TEXT, body, options=options).status_code == 200
    response = post(TEXT, body + b" ", options=options)
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(len(body) + 1):
            yield b" "

    headers = {"content-type": "application/json"}
    response = ask("POST", TEXT, content=chunks(), headers=headers, options=options)
    assert response.status_code == 413


def test_a_slow_body_is_given_up() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(1)
        yield b"}"

    options = ServerOptions(body_timeout_s=0.05)
    headers = {"content-type": "application/json"}
    response = ask("POST", TEXT, content=slow(), headers=headers, options=options)
    assert (response.status_code, error_of(response)["code"]) == (408, "body_timeout")


def test_long_heads_are_refused() -> None:
    response = ask("GET", "/v1/models", headers={"x": "y" * 100_000})
    assert (response.status_code, error_of(response)["code"]) == (431, "headers_too_large")
    many = [("host", "127.0.0.1"), *((f"x{i}", "y") for i in range(10_000))]
    assert ask("GET", "/v1/models", headers=many).status_code == 431


def test_health_follows_the_engine() -> None:
    ready, live = ask_all(
        [("GET", "/health", {}), ("GET", "/health/live", {})], generator=Scripted(is_alive=False)
    )
    assert ready.status_code == live.status_code == 503
    error_of(ready)


def test_request_ids_are_kept_where_harmless() -> None:
    assert (
        ask("GET", "/health", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    )
    for bad in ("a b", "x" * 200, 'a"b', ""):
        given = ask("GET", "/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert given.startswith("req_")


def test_one_log_line_without_prompt_or_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "insitu.access")
    body = chat_body(messages=[{"role": "user", "content": "secretword"}])
    post(CHAT, body, generator=Scripted(text="hiddenword"))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "insitu.access"]
    entry = json.loads(line)
    assert entry["status"] == 200
    assert entry["outcome"] == "completed"
    assert entry["completion_tokens"] == len("hiddenword")
    assert entry["finish_reason"] == "stop"
    assert entry["ttft_s"] >= 0
    assert "secretword" not in caplog.text
    assert "hiddenword" not in caplog.text


def test_an_unforeseen_error_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    generator = Scripted(fail_after=0, error=KeyError("secretword"))
    response = post(CHAT, chat_body(), generator=generator)
    assert response.status_code == 500
    assert "KeyError" in caplog.text
    assert "secretword" not in caplog.text + response.text


def test_the_document_lists_the_routes() -> None:
    paths = {route.path.replace(":path", "") for route in routes()}
    assert paths == {operation.path for operation in OPERATIONS}
    document = ask("GET", "/openapi.json").json()
    assert set(document["paths"]) == paths
    assert (
        "securitySchemes"
        in ask(
            "GET", "/openapi.json", options=KEYS, headers={"authorization": "Bearer right"}
        ).json()["components"]
    )


def sample(text: str, name: str, **labels: str) -> float:
    total = 0.0
    for line in text.splitlines():
        series, _, value = line.rpartition(" ")
        if series.split("{")[0] == name and all(f'{k}="{v}"' in series for k, v in labels.items()):
            total += float(value)
    return total


async def scrape(client: httpx.AsyncClient) -> str:
    return (await client.get("/metrics")).text


async def cancel_after_first_byte(app: Starlette, body: dict[str, Any], wait_s: float) -> None:
    """Call the app as a client that goes away."""
    sent = asyncio.Event()
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        if wait_s == 0:
            await sent.wait()
        else:
            await asyncio.sleep(wait_s)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if b'"content":"a"' in message.get("body", b""):
            sent.set()

    await asyncio.wait_for(app(chat_scope(), receive, send), 5)


def test_metrics_add_up() -> None:
    async def run() -> None:
        generator = Scripted()
        app = create_app(generator, ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            before = await scrape(client)
            for stream in (False, True, False, True, False):
                await client.post(CHAT, json=chat_body(stream=stream))
            await client.post(CHAT, json=chat_body(n=129))
            await client.post(CHAT, json=chat_body(bogus=2))
            generator.gap_s = 0.02
            for _ in range(5):
                await cancel_after_first_byte(app, chat_body(stream=True), 0)
            generator.start_s = 5
            for stream in (True, False, True):
                await cancel_after_first_byte(app, chat_body(stream=stream), 0.05)
            generator.start_s = generator.gap_s = 0
            generator.fail_after = 2
            await client.post(CHAT, json=chat_body(stream=True))
            await client.post(CHAT, json=chat_body())
            after = await scrape(client)
            assert await scrape(client) != before
        assert sample(before, "insitu_requests_received_total") == 0
        assert sample(after, "insitu_requests_received_total", route=CHAT) == 17
        wanted = {"completed": 5, "cancelled": 8, "failed": 2, "refused": 2}
        for outcome, count in wanted.items():
            labels = {"route": CHAT, "outcome": outcome}
            assert sample(after, "insitu_requests_total", **labels) == count, outcome
            name = "gen_ai_server_request_duration_seconds_count"
            assert sample(after, name, outcome=outcome) == count
        assert sample(after, "insitu_num_requests_running") == 0
        assert sample(after, "insitu_prompt_tokens_total") == 12 * len("<user>hi")
        assert sample(after, "gen_ai_server_time_to_first_token_seconds_count") == 12
        assert sample(after, "gen_ai_server_time_per_output_token_seconds_count") == 5
        assert sample(after, "insitu_generation_tokens_total") >= 5 * 10 + 5 + 4
        assert sample(after, "insitu_engine_steps_total") == 3
        assert sample(after, "insitu_engine_step_seconds_count") == 3
        assert len(generator.closed) == 15

    asyncio.run(run())


def test_a_drain_lets_work_finish_and_refuses_more() -> None:
    async def run() -> None:
        generator = Scripted(gap_s=0.03)
        app = create_app(generator, ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            running = [
                asyncio.create_task(client.post(CHAT, json=chat_body(stream=one)))
                for one in (True, False)
            ]
            await asyncio.sleep(0.1)
            drain = asyncio.create_task(app.state.service.lifecycle.drain(5))
            await asyncio.sleep(0)
            refused = await client.post(CHAT, json=chat_body())
            assert refused.status_code == 503
            assert refused.headers["retry-after"] == "5"
            assert (await client.get("/health")).status_code == 503
            assert (await client.get("/health/live")).status_code == 200
            stream, whole = await asyncio.gather(*running)
            assert '"finish_reason":"stop"' in stream.text
            assert whole.json()["choices"][0]["finish_reason"] == FinishReason.STOP
            assert await drain

    asyncio.run(run())


def test_the_end_of_the_grace_time_is_an_error_event() -> None:
    async def run() -> None:
        app = create_app(Scripted(gap_s=0.2), ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            running = [
                asyncio.create_task(client.post(CHAT, json=chat_body(stream=one)))
                for one in (True, False)
            ]
            await asyncio.sleep(0.3)
            assert not await app.state.service.lifecycle.drain(0.05)
            stream, whole = await asyncio.gather(*running)
            assert '"code":"shutting_down"' in stream.text
            assert '"finish_reason":"stop"' not in stream.text
            assert stream.text.endswith("data: [DONE]\n\n")
            assert whole.status_code == 503
            assert "retry-after" in whole.headers

    asyncio.run(run())


def test_a_template_that_raises_is_a_plain_400() -> None:
    class Raising(Scripted):
        async def prepare(self, request: Any) -> Any:
            raise Refusal("roles must alternate", param="messages")

    response = post(CHAT, chat_body(), generator=Raising())
    assert (response.status_code, error_of(response)["message"]) == (400, "roles must alternate")


def test_a_request_that_never_finishes_is_a_failure() -> None:
    class Silent(Scripted):
        async def _deltas(self, prepared: Any) -> AsyncIterator[Any]:
            return
            yield

    response = post(CHAT, chat_body(), generator=Silent())
    assert response.status_code == 500
    text = post(CHAT, chat_body(stream=True), generator=Silent()).text
    assert '"code":"request_failed"' in text
    assert str(RequestFailed("x")) == "x"


def test_a_model_says_what_it_can_do_and_how_much_of_it() -> None:
    model = ask("GET", "/v1/models/tiny").json()
    ModelAnswer.model_validate(model)
    assert model["capabilities"]["chat"] is True
    assert model["capabilities"]["tools"] is False
    limits = model["limits"]
    assert limits["max_model_len"] == 512
    longest = text_body(stop=["x" * limits["stop_chars"]] * limits["stop_strings"])
    assert post(TEXT, longest).status_code == 200
    for body in (
        text_body(stop=["x" * (limits["stop_chars"] + 1)]),
        text_body(stop=["x"] * (limits["stop_strings"] + 1)),
        text_body(n=limits["choices"] + 1),
        text_body(logprobs=limits["top_logprobs"] + 1),
        text_body(prompt=["x"] * (limits["prompts"] + 1)),
        text_body(stop_token_ids=[1] * (limits["stop_token_ids"] + 1)),
        text_body(logit_bias={str(one): 1 for one in range(limits["logit_bias"] + 1)}),
        text_body(bad_words=["x"] * (limits["bad_words"] + 1)),
        text_body(bad_words=["x" * (limits["word_chars"] + 1)]),
        text_body(guided_choice=["x"] * (limits["guided_choices"] + 1)),
    ):
        assert post(TEXT, body).status_code == 400
    options = ServerOptions(max_body_bytes=1000)
    shown = ask("GET", "/v1/models", options=options).json()["data"][0]
    assert shown["limits"]["body_bytes"] == 1000
