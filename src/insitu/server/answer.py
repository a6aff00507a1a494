"""Run a prepared request and send what it makes, whole or as server-sent events.

Not here: wording (``shape``) or ending early (``feed``). Always true: a feed is closed on every
way out; a stream that fails carries an ``error`` event and no finish reason, then ``[DONE]``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from insitu.refusal import Refusal, RequestFailed
from insitu.server.errors import ClientGone, JSONAnswer, as_refusal
from insitu.server.feed import Feed
from insitu.server.lenience import renamed
from insitu.server.record import Outcome, Record, record_of
from insitu.server.service import service_of, unknown_model
from insitu.types import Delta, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from insitu.server.shape import Shape
    from insitu.types import Prepared, Tokenized
    from insitu.types import Request as Asked

T = TypeVar("T")
# How long a stream's headers wait for a first delta: refusals by the engine come at once.
_SETTLE_S = 0.5
# A client that takes nothing in for so long has gone: what was made for it is not kept for ever.
_READ_TIMEOUT_S = 60.0


def new_id(prefix: str, joint: str = "-") -> str:
    """An id nobody had before."""
    return f"{prefix}{joint}{secrets.token_hex(12)}"


async def prepare(
    request: Request, asked: Asked, *, names: Mapping[str, str], is_last: bool = True
) -> Prepared:
    """Turn what was asked into ids, noting its size; ``names``: the caller's, of our fields.

    Of several prompts of one body all but the last are not ``is_last``.
    """
    service = service_of(request)
    record = record_of(request.scope)
    record.generation_id = asked.request_id
    record.names = names
    _admit(request, asked)
    asked = _timed(asked, service.options.request_timeout_s)
    record.timeout_s = asked.timeout_s
    prepared = await _converted(request, service.generator.prepare, asked, names)
    if is_last:
        record.let_body_go()
    if record.ticket is not None:
        max_tokens = prepared.max_tokens * asked.sampling.n
        try:
            record.ticket.reserve(prepared.num_prompt_tokens, max_tokens)
        except Refusal as refusal:
            raise renamed(refusal, names) from None
    record.model = service.generator.describe().name
    record.prompt_tokens = (record.prompt_tokens or 0) + prepared.num_prompt_tokens
    return replace(prepared, warnings=(*record.warnings, *prepared.warnings))


def _admit(request: Request, asked: Asked) -> None:
    """Ask the gate, once a request over HTTP."""
    gate, record = service_of(request).options.gate, record_of(request.scope)
    if gate is not None and record.ticket is None:
        record.ticket = gate.admit(asked, record.caller)


async def tokenize(request: Request, asked: Asked) -> Tokenized:
    """Ids of a prompt, without running anything."""
    service = service_of(request)
    record = record_of(request.scope)
    _admit(request, asked)
    tokenized = await _converted(request, service.generator.tokenize, asked, {})
    record.model = service.generator.describe().name
    return replace(tokenized, warnings=(*record.warnings, *tokenized.warnings))


async def _converted(
    request: Request,
    convert: Callable[[Asked], Awaitable[T]],
    asked: Asked,
    names: Mapping[str, str],
) -> T:
    """What was asked as ids, in a large body's turn; a refusal in the caller's names."""
    try:
        async with service_of(request).bodies.turn_of(record_of(request.scope).body):
            return await convert(asked)
    except Refusal as refusal:
        if refusal.status == 404:
            raise unknown_model() from refusal
        raise renamed(refusal, names) from None


def _timed(asked: Asked, limit_s: float | None) -> Asked:
    """Give a request the server's time where it has none of its own."""
    if limit_s is None:
        return asked
    if asked.timeout_s is not None and asked.timeout_s > limit_s:
        message = f"timeout must be at most {limit_s:g} s, which every request here may take."
        raise Refusal(message, param="timeout", code="invalid_value")
    return replace(asked, timeout_s=asked.timeout_s or limit_s)


async def answer(
    request: Request, prepared: Prepared, shape: Shape, *, is_stream: bool
) -> Response:
    """Run a request; what is refused before its first byte keeps its HTTP status."""
    caller = record_of(request.scope).caller
    deltas = service_of(request).generator.stream(prepared, caller)
    return await send_deltas(request, deltas, shape, is_stream=is_stream)


async def send_deltas(
    request: Request, deltas: AsyncIterator[Delta], shape: Shape, *, is_stream: bool
) -> Response:
    """Take in what a request's prompts make; word it whole or as a stream."""
    if not is_stream:
        return JSONAnswer(shape.whole(*await collect(request, deltas)))
    feed = _opened(request, deltas)
    try:
        await feed.settle(_SETTLE_S)
    except BaseException:
        await feed.close()
        raise
    return EventStream(feed, record_of(request.scope), shape)


def _opened(request: Request, deltas: AsyncIterator[Delta]) -> Feed:
    feed = Feed(deltas, record_of(request.scope), service_of(request).lifecycle)
    feed.open(request.receive)
    return feed


async def collect(request: Request, deltas: AsyncIterator[Delta]) -> tuple[list[Delta], Usage]:
    """All that a request's prompts make, and what they used."""
    record, feed = record_of(request.scope), _opened(request, deltas)
    made: list[Delta] = []

    async def take(delta: Delta) -> None:
        made.append(delta)

    try:
        await feed.hand_on(take)
    finally:
        await feed.close()
    _require_finish(record)
    return made, _usage(record)


def _require_finish(record: Record) -> None:
    if record.finish_reason is None:
        raise RequestFailed("The request ended without finishing.")


def _usage(record: Record) -> Usage:
    """What all choices together used; the prompt is counted once."""
    return Usage(
        record.prompt_tokens or 0,
        record.completion_tokens,
        record.cached_tokens,
        record.reasoning_tokens,
    )


class EventStream(Response):
    """An answer as server-sent events."""

    def __init__(self, feed: Feed, record: Record, shape: Shape) -> None:
        self.status_code = 200
        self.background = None
        self._feed = feed
        self._record = record
        self._shape = shape
        self.init_headers(
            {
                "content-type": f"{shape.dialect.media_type}; charset=utf-8",
                "cache-control": "no-cache",
                "x-accel-buffering": "no",
            }
        )
        # No body yet: its length is unknown.
        self.raw_headers = [one for one in self.raw_headers if one[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything, then close the feed."""
        try:
            async with asyncio.timeout(None) as limit:
                self._feed.flush_within(limit)
                await self._send_to_the_end(send)
        except TimeoutError:  # it was stopped, and its client does not even read that
            if self._feed.error is not None:
                self._record.note_error(self._feed.error)
        finally:
            await self._feed.close()

    async def _send_to_the_end(self, send: Send) -> None:
        try:
            await self._send_all(send)
        except ClientGone as error:
            self._record.note_error(error)
        except Exception as error:
            self._record.note_error(error)
            self._record.outcome = self._record.outcome or Outcome.FAILED
            chunks = self._shape.failing(as_refusal(error, self._record.names))
            with contextlib.suppress(ClientGone):
                await self._write(send, chunks, is_last=True)

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await self._write(send, self._shape.opening())
        await self._feed.hand_on(partial(self._write_delta, send))
        _require_finish(self._record)
        usage = _usage(self._record)
        await self._write(send, self._shape.closing(usage), is_last=True)

    async def _write_delta(self, send: Send, delta: Delta) -> None:
        await self._write(send, self._shape.chunks(delta))

    async def _write(
        self, send: Send, chunks: Iterable[dict[str, Any]], *, is_last: bool = False
    ) -> None:
        dialect = self._shape.dialect
        parts = [dialect.frame(chunk) for chunk in chunks]
        if is_last:
            parts.append(dialect.last)
        await _write(send, parts, is_last=is_last)


async def _write(send: Send, parts: list[bytes], *, is_last: bool = False) -> None:
    """Send what was made; a client that does not read it within ``_READ_TIMEOUT_S`` has gone."""
    if not parts:
        return
    body = {"type": "http.response.body", "body": b"".join(parts), "more_body": not is_last}
    try:
        async with asyncio.timeout(_READ_TIMEOUT_S):
            await send(body)
    except TimeoutError:
        raise ClientGone from None
