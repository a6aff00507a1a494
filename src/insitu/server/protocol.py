"""uvicorn's HTTP protocol with bounds: the size of a request's head, and the time it may take.

Not here: bodies (``body`` bounds them where they are read). Always true: what cannot be parsed is
answered in the error shape of its path's protocol, after the requests before it, and the connection
closes after it; a trailer is never a header; a request that offers another protocol
(``Upgrade: h2c``) is answered in this one, body and all.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from insitu.refusal import Refusal
from insitu.server.dialects import dialect_of
from insitu.server.errors import json_bytes
from insitu.server.record import request_id_from

if TYPE_CHECKING:
    import asyncio

MAX_HEAD_BYTES = 128 * 2**10
HEAD_TIMEOUT_S = 20.0


class _HeadTooLong(Exception):
    """Raised where the parser calls us, which ends its work."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Bytes of a head that has begun and is not complete; None between requests.
        self._head_bytes: int | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        # What is said once all that came before it is answered; nothing more is read.
        self._last_words: bytes | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head: a connection must ask for something."""
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless the head it belongs to has grown too long."""
        if self._last_words is not None:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _HeadTooLong):
                self._refuse_long_head()
            else:
                self.send_400_response("")
        except httptools.HttpParserUpgrade as offer:
            self._go_on_without_upgrade(data[offer.args[0] :])
            return
        if self._head_bytes is None or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_long_head()

    def on_message_begin(self) -> None:
        """A head begins."""
        super().on_message_begin()
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self._head_timed_out)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after the head is a trailer, and is dropped."""
        if self._head_bytes is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is whole: its size is what it is, in however many pieces it came."""
        if self.parser.should_upgrade():
            return  # the parser stops here: see below
        lines = sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        if len(self.url) + lines > MAX_HEAD_BYTES:
            raise _HeadTooLong
        self._head_bytes = None
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is whole."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Parse the request again as if it had offered no other protocol; its body is in ``rest``.

        Java's own client offers h2c with every request; the parser takes all after such a head for
        the other protocol.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        lines = [method + b" " + self.url + b" HTTP/1.1"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = (token.strip() for token in value.lower().split(b","))
                kept = [token for token in tokens if token not in {b"upgrade", b"http2-settings"}]
                lines += [name + b": " + b", ".join(kept)] if kept else []
            elif name not in {b"upgrade", b"http2-settings"}:
                lines.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self._head_bytes = None
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def _refuse_long_head(self) -> None:
        self._refuse(431, "The head of the request is too long.", "headers_too_large")

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be parsed."""
        self._refuse(400, "The request is not valid HTTP.", "invalid_http")

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self._refuse(408, "The head of the request did not arrive in time.", "head_timeout")

    def _path(self) -> str:
        """The path of the request at hand, as far as it is known."""
        return getattr(self, "url", b"").split(b"?")[0].decode("latin-1")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer by hand where no request exists to answer, after those before it, and close."""
        self._stop_timer()
        words = self._worded(status, message, code)
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            self._end_with(words)
        elif not cycle.more_body:  # it is whole: what came after it is at fault
            self._last_words = words
        elif self.pipeline:  # it is at fault itself, and waits for its turn
            self.pipeline.popleft()
            self._last_words = words
        else:
            self._end_with(b"" if cycle.response_started else words)

    def on_response_complete(self) -> None:
        """A request was answered; where what came after the last could not be read, say so."""
        was_last = not self.pipeline
        super().on_response_complete()
        if was_last and self._last_words is not None and not self.transport.is_closing():
            self._unset_keepalive_if_required()
            self._end_with(self._last_words)

    def _end_with(self, words: bytes) -> None:
        self.transport.write(words)
        self.transport.close()

    def _worded(self, status: int, message: str, code: str) -> bytes:
        request_id = request_id_from(getattr(self, "headers", []))
        refusal = Refusal(message, status=status, code=code)
        body = json_bytes(dialect_of(self._path()).failure(refusal, request_id))
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            "content-type: application/json\r\n"
            f"content-length: {len(body)}\r\n"
            f"x-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        return head.encode("ascii") + body
