"""The HTTP protocol given bytes in pieces of a size, as a network would on a good or a bad day."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from server.scripted_generator import Scripted
from uvicorn.config import Config
from uvicorn.server import ServerState

from insitu.server.app import create_app
from insitu.server.options import ServerOptions
from insitu.server.protocol import BoundedHttpProtocol


class Pipe(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        """Nothing: whoever feeds the protocol decides."""

    def resume_reading(self) -> None:
        """Nothing, as above."""


def connected(generator: Scripted | None = None) -> tuple[BoundedHttpProtocol, Pipe]:
    """A protocol, and what it writes to."""
    config = Config(create_app(generator or Scripted(), ServerOptions()), http=BoundedHttpProtocol)
    config.load()
    pipe = Pipe()
    protocol = BoundedHttpProtocol(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(pipe)
    return protocol, pipe


@pytest.mark.parametrize("size", [2**16, 2**17, 200_000, 2**20])
def test_a_long_head_is_too_long_in_however_many_pieces_it_comes(size: int) -> None:
    async def answer_of(data: bytes) -> bytes:
        protocol, pipe = connected()
        for at in range(0, len(data), size):
            if not pipe.is_closed:
                protocol.data_received(data[at : at + size])
        return pipe.written

    request = (
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000 + b"\r\n\r\n{}"
    )
    head, _, body = asyncio.run(answer_of(request)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert json.loads(body)["error"]["code"] == "headers_too_large"


WORK = json.dumps({"model": "tiny", "prompt": "hi", "max_tokens": 3}).encode()
ASKED = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(WORK), WORK)
)


@pytest.mark.parametrize("num_before", [1, 2])
@pytest.mark.parametrize(
    ("after", "status"),
    [
        (b"\0\1 no HTTP\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n", 400),
    ],
)
@pytest.mark.parametrize("is_apart", [False, True])
def test_what_cannot_be_read_is_answered_after_what_came_before_it(
    after: bytes, status: int, num_before: int, is_apart: bool
) -> None:
    async def answers() -> bytes:
        protocol, pipe = connected(Scripted(gap_s=0.01))
        if is_apart:
            protocol.data_received(ASKED * num_before)
            await asyncio.sleep(0)
            protocol.data_received(after)
        else:
            protocol.data_received(ASKED * num_before + after)
        protocol.data_received(b"GET /health HTTP/1.1\r\n\r\n")  # is read no more
        async with asyncio.timeout(10):
            while not pipe.is_closed:
                await asyncio.sleep(0.001)
        return pipe.written

    parts = asyncio.run(answers()).split(b"HTTP/1.1 ")[1:]
    assert [int(one[:3]) for one in parts] == [200] * num_before + [status]
    assert all(b'"text":"alp"' in one for one in parts[:-1])
    assert b"connection: close" in parts[-1]
