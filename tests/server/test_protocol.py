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


@pytest.mark.parametrize("size", [2**16, 2**17, 200_000, 2**20])
def test_a_long_head_is_too_long_in_however_many_pieces_it_comes(size: int) -> None:
    async def answer_of(data: bytes) -> bytes:
        config = Config(create_app(Scripted(), ServerOptions()), http=BoundedHttpProtocol)
        config.load()
        pipe = Pipe()
        protocol = BoundedHttpProtocol(config=config, server_state=ServerState(), app_state={})
        protocol.connection_made(pipe)
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
