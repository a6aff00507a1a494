"""Ask an app over ASGI, without sockets, and read streams as a strict client does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
from server.scripted_generator import Scripted

from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from insitu.types import Generator

BASE = "http://127.0.0.1:8000"
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def ask(
    method: str,
    path: str,
    *,
    generator: Generator | None = None,
    options: ServerOptions | None = None,
    **how: Any,
) -> httpx.Response:
    """One request to a fresh app."""
    return ask_all([(method, path, how)], generator=generator, options=options)[0]


def ask_all(
    requests: list[tuple[str, str, dict[str, Any]]],
    *,
    generator: Generator | None = None,
    options: ServerOptions | None = None,
) -> list[httpx.Response]:
    """Requests one after another to one fresh app."""

    async def run() -> list[httpx.Response]:
        app = create_app(generator or Scripted(), options or ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return [await client.request(m, path, **how) for m, path, how in requests]

    return asyncio.run(run())


def post(path: str, body: Any, **how: Any) -> httpx.Response:
    """Post a value as JSON, or bytes as they are."""
    if isinstance(body, bytes):
        headers = {"content-type": "application/json", **how.pop("headers", {})}
        return ask("POST", path, content=body, headers=headers, **how)
    return ask("POST", path, json=body, **how)


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}


def text_body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": "hi", **fields}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """All events of a stream that ends as it should, without the last ``[DONE]``."""
    text = response.text
    assert text.endswith("\n\n")
    lines = text[:-2].split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert text.count("[DONE]") == 1
    return [json.loads(line[6:]) for line in lines[:-1]]


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error object of a failure, checked for its shape."""
    assert response.headers["content-type"] == "application/json"
    body = json.loads(response.content.decode("utf-8"))
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def chat_scope() -> dict[str, Any]:
    """What an ASGI server tells an app of a chat request whose body is to come."""
    return {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")],
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
    }
