"""Keys, scopes and limits over HTTP: statuses, headers, and what every end settles."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from server.asking import BASE, CHAT, TEXT, ask, ask_all, chat_body, error_of, post, text_body
from server.scripted_generator import Scripted

from insitu.policy.gate import LimitGate
from insitu.policy.limits import Limits
from insitu.server.app import create_app
from insitu.server.options import ServerOptions
from insitu.types import Caller

if TYPE_CHECKING:
    from collections.abc import Callable

CALLERS = {"user-key": Caller("acme"), "admin-key": Caller("ops", is_admin=True)}


def options(**limits: int) -> ServerOptions:
    return ServerOptions(gate=LimitGate(lambda _: Limits(**limits), clock=lambda: 0.0))


def keyed(presented: str) -> dict[str, Any]:
    return {
        "options": ServerOptions(authenticate=lambda key: CALLERS.get(key or "")),
        "headers": {"authorization": f"Bearer {presented}"},
    }


def test_metrics_need_the_admin_scope_and_nothing_else_does() -> None:
    refused = ask("GET", "/metrics", **keyed("user-key"))
    assert (refused.status_code, error_of(refused)["code"]) == (403, "admin_scope_needed")
    assert ask("GET", "/metrics", **keyed("admin-key")).status_code == 200
    assert ask("GET", "/v1/models", **keyed("user-key")).status_code == 200
    assert ask("GET", "/metrics").status_code == 200  # where no keys are in use


def test_a_refused_request_says_when_to_come_again() -> None:
    first, second = ask_all(
        [("POST", CHAT, {"json": chat_body()})] * 2, options=options(requests_per_minute=1)
    )
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert first.headers["x-ratelimit-reset-requests"] == "60.000s"
    assert (second.status_code, second.headers["retry-after"]) == (429, "60")
    error = error_of(second)
    assert (error["type"], error["code"]) == ("rate_limit_error", "requests_per_minute")


def test_too_many_tokens_are_refused_under_the_callers_name() -> None:
    limited = options(tokens_per_minute=50)
    body = chat_body(max_completion_tokens=100)
    assert error_of(post(CHAT, body, options=limited))["param"] == "max_completion_tokens"
    messages = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    refused = post("/v1/messages", {**messages, "max_tokens": 100}, options=limited)
    assert refused.json()["error"]["code"] == "tokens_per_minute"
    response = post("/v1/responses", {"input": "hi"}, options=limited)
    assert error_of(response)["param"] == "max_output_tokens"


@pytest.mark.parametrize(
    ("how", "used"),
    [
        ({}, 8 + 10),
        ({"stream": True}, 8 + 10),
        ({"max_tokens": 3}, 8 + 3),
        ({"n": 2}, 8 + 20),
    ],
)
def test_what_was_used_is_settled(how: dict[str, Any], used: int) -> None:
    body = chat_body(**{"max_tokens": 20, **how})
    both = [("POST", CHAT, {"json": body}), ("POST", CHAT, {"json": chat_body(max_tokens=1)})]
    _, after = ask_all(both, options=options(tokens_per_minute=1000))
    assert after.headers["x-ratelimit-remaining-tokens"] == str(1000 - used - 8 - 1)


def test_refused_and_failed_requests_give_back_what_they_did_not_use() -> None:
    limited = options(tokens_per_minute=1000, concurrent_requests=1)
    generator = Scripted()
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", CHAT, {"json": chat_body(max_tokens=10_000)}),  # refused
        ("POST", CHAT, {"json": chat_body(model="other")}),  # refused
        ("POST", TEXT, {"json": text_body(max_tokens=1)}),
    ]
    *_, after = ask_all(asked, options=limited, generator=generator)
    assert after.status_code == 200
    assert after.headers["x-ratelimit-remaining-tokens"] == str(1000 - 2 - 1)
    failing = Scripted(fail_after=2)
    two: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", CHAT, {"json": chat_body(max_tokens=50)}),
        ("POST", CHAT, {"json": chat_body(max_tokens=1)}),
    ]
    _, last = ask_all(two, options=options(tokens_per_minute=1000), generator=failing)
    assert last.headers["x-ratelimit-remaining-tokens"] == str(1000 - (8 + 2) - (8 + 1))


def test_a_client_that_left_frees_its_place() -> None:
    limited = options(concurrent_requests=1, tokens_per_minute=10_000)
    generator = Scripted(text="x" * 400, gap_s=0.01)

    async def run() -> httpx.Response:
        app = create_app(generator, limited)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            first = asyncio.create_task(client.post(CHAT, json=chat_body(max_tokens=400)))
            await until(lambda: generator.num_running == 1)
            assert (await client.post(CHAT, json=chat_body())).status_code == 429
            first.cancel()
            await until(lambda: generator.num_running == 0)
            await asyncio.gather(first, return_exceptions=True)
            return await client.post(CHAT, json=chat_body(max_tokens=1))

    assert asyncio.run(run()).status_code == 200


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)
