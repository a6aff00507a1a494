"""One streamed completion from any server that speaks OpenAI's API, timed.

httptools parses and an asyncio protocol reads, so that the client takes little of a machine that
it shares with the server.

Not here: what is asked (``load``), or how many at once (``serve``).

Always true: an ``Answer`` says how the request ended, whatever the server did.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httptools

from insitu.bench.errors import BenchError

_DATA = b"data:"
_DONE = b"[DONE]"


@dataclass(slots=True)
class Answer:
    """What came back and when, in seconds from when the request was sent.

    ``chunk_times_s`` are those of chunks with text; ``error`` is empty for an answer that ended.
    """

    chunk_times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask: an address, a model's name, perhaps a key."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 600.0
    ignores_eos: bool = True

    @property
    def parts(self) -> SplitResult:
        """The address in pieces; anything that is not http(s) is refused."""
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BenchError(f"{self.url!r} is not the address of an HTTP server.")
        return parts


async def complete(target: Target, prompt: str, max_tokens: int) -> Answer:
    """Stream one completion to its end; what goes wrong is in the answer's ``error``."""
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.ignores_eos:  # not OpenAI's, but every local server's
        body["ignore_eos"] = True
    answer, started_s = Answer(), time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_s):
            await _exchange(target, json.dumps(body).encode(), answer, started_s)
    except TimeoutError:
        answer.error = f"no end after {target.timeout_s:g} s"
    except OSError as error:
        answer.error = f"connection: {error.strerror or type(error).__name__}"
    answer.end_s = time.perf_counter() - started_s
    if not answer.error and not answer.chunk_times_s:
        answer.error = "no text"
    return answer


async def _exchange(target: Target, body: bytes, answer: Answer, started_s: float) -> None:
    parts, loop = target.parts, asyncio.get_running_loop()
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    transport, reader = await loop.create_connection(
        lambda: _Reader(answer, started_s), parts.hostname or "", port, ssl=is_secure or None
    )
    try:
        transport.write(_head(target, parts, len(body)) + body)
        await reader.ended
    finally:
        transport.abort()


def _head(target: Target, parts: SplitResult, num_bytes: int) -> bytes:
    path = parts.path.rstrip("/").removesuffix("/v1")
    lines = [
        f"POST {path}/v1/completions HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        f"Content-Length: {num_bytes}",
        "Connection: close",
    ]
    if target.api_key:
        lines.append(f"Authorization: Bearer {target.api_key}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


class _Reader(asyncio.Protocol):
    """Takes a response in; httptools calls the ``on_`` methods."""

    def __init__(self, answer: Answer, started_s: float) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answer = answer
        self._started_s = started_s
        self._parser = httptools.HttpResponseParser(self)
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"not HTTP: {error}")

    def connection_lost(self, _: Exception | None) -> None:
        """The server hung up."""
        self._end("the connection was lost")

    def on_headers_complete(self) -> None:
        """The status is known."""
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """A piece of the body; events end with an empty line, of which one line is data."""
        self._rest += body
        if self._answer.status != 200:
            return
        *lines, self._rest = self._rest.split(b"\n")
        now_s = time.perf_counter() - self._started_s
        for line in lines:
            if line.startswith(_DATA):
                self._take(line[len(_DATA) :].strip(), now_s)

    def on_message_complete(self) -> None:
        """The whole body came."""
        if self._answer.status == 200:
            self._end("")
        else:
            self._end(f"HTTP {self._answer.status}")

    def _take(self, data: bytes, now_s: float) -> None:
        if data == _DONE:
            return
        try:
            chunk: dict[str, Any] = json.loads(data)
            if chunk.get("error"):
                self._end(f"error in the stream: {chunk['error'].get('code') or 'no code'}")
                return
            usage = chunk.get("usage")
            if usage:
                self._answer.prompt_tokens = int(usage["prompt_tokens"])
                self._answer.output_tokens = int(usage["completion_tokens"])
            if any(choice.get("text") for choice in chunk.get("choices") or ()):
                self._answer.chunk_times_s.append(now_s)
        except (ValueError, TypeError, KeyError, AttributeError):
            self._end("a chunk that is no completion")

    def _end(self, error: str) -> None:
        if not self.ended.done():
            self._answer.error = error
            self.ended.set_result(None)
