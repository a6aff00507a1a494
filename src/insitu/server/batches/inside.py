"""Ask this very app from within, for a tenant whose key was checked when it made its batch.

Not here: what is asked. Always true: such a request goes through the door, is counted, logged,
limited and judged like one over HTTP; only the key, ``Host`` and ``Origin`` are not looked at.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.server.record import CALLER_KEY

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

    from insitu.types import Caller


@dataclass(slots=True)
class Answered:
    """What came back."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


async def ask(app: ASGIApp, path: str, body: bytes, caller: Caller, request_id: str) -> Answered:
    """Post JSON to a path."""
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
        CALLER_KEY: caller,
    }
    parts = [body]
    answer = Answered(500, {}, b"")

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await asyncio.Event().wait()  # it stays until it has its answer
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = dict(message["headers"])
        else:
            answer.body += message.get("body", b"")

    await app(scope, receive, send)
    return answer
