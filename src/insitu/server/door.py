"""The first and last to see a request: record, guard, key, drain, and what nobody else caught.

Not here: routes (``app``). Always true: every answer carries ``x-request-id``, every failure is
JSON in its protocol's form, and every request is logged and counted once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.responses import Response

from insitu.refusal import Refusal
from insitu.server.auth import identify
from insitu.server.dialects import error_answer
from insitu.server.errors import ClientGone, as_refusal, draining
from insitu.server.guard import Guard, check_head, values_of
from insitu.server.paths import place_of
from insitu.server.record import CALLER_KEY, SCOPE_KEY, Cause, Record, record_of, request_id_from
from insitu.server.service import unknown_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from insitu.server.service import Service


class Door:
    """Wraps the routes."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._guard = Guard(service.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request in, and see it out."""
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        place = place_of(scope["path"])
        record = scope[SCOPE_KEY] = Record(
            request_id=request_id_from(scope["headers"]),
            method=scope["method"],
            route=place.template,
            metrics=self._service.metrics,
        )
        is_generation = place.is_generation and scope["method"] == "POST"
        if is_generation:
            self._service.metrics.note_received(place.template)
        try:
            await self._answer(scope, receive, self._named(scope, record, send))
        except BaseException:
            is_draining = self._service.lifecycle.is_draining
            record.cancel(Cause.DRAIN if is_draining else Cause.DISCONNECT)
            raise
        finally:
            record.let_body_go()
            record.close_ticket()
            record.settle()
            if is_generation:
                self._service.metrics.note_ended(record)
            record.write_log()

    def _named(self, scope: Scope, record: Record, send: Send) -> Send:
        """Add to each answer what every answer carries."""
        is_preflight = self._is_preflight(scope)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                extra = [(b"x-request-id", record.request_id.encode("latin-1"))]
                extra += self._guard.cors_headers(scope["headers"], is_preflight=is_preflight)
                if record.ticket is not None:
                    extra += [(k.encode(), v.encode()) for k, v in record.ticket.headers().items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        return named

    def _is_preflight(self, scope: Scope) -> bool:
        if scope["method"] != "OPTIONS":
            return False
        headers = scope["headers"]
        if not values_of(headers, b"access-control-request-method"):
            return False
        return any(self._guard.allows(origin) for origin in values_of(headers, b"origin"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_started = False

        async def watched(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            self._admit(scope)
            if self._is_preflight(scope):
                await Response(status_code=204)(scope, receive, watched)
            elif place_of(scope["path"]).is_work:
                with self._service.lifecycle.active():
                    await self._app(scope, receive, watched)
            else:
                await self._app(scope, receive, watched)
        except ClientGone as error:
            scope[SCOPE_KEY].note_error(error)
            if not has_started:
                # Nobody is there to read it, but the protocol wants an answer.
                await Response(status_code=400)(scope, receive, watched)
        except Exception as error:
            if has_started:
                raise
            record = scope[SCOPE_KEY]
            record.note_error(error)
            answer = error_answer(as_refusal(error, record.names), scope["path"], record.request_id)
            await answer(scope, receive, watched)

    def _admit(self, scope: Scope) -> None:
        """Refuse what must not reach a route."""
        service, headers = self._service, scope["headers"]
        if CALLER_KEY in scope:
            scope[SCOPE_KEY].caller = scope[CALLER_KEY]
        else:
            check_head(headers, service.options.max_header_bytes)
            self._guard.check(headers, scope["scheme"])
            if not self._is_preflight(scope):
                caller = identify(headers, place_of(scope["path"]), service.options.authenticate)
                scope[SCOPE_KEY].caller = caller
        if "\n" in scope["path"]:
            # A route's pattern ends with "$", which lets one line feed through.
            is_model = scope["path"].startswith("/v1/models/")
            raise unknown_model() if is_model else _nothing_here()
        if service.lifecycle.is_draining and place_of(scope["path"]).is_work:
            raise draining(service.options.retry_after_s)


async def http_error(request: Request, error: Exception) -> Response:
    """A router's refusal (404, 405) in our shape, its ``Allow`` header kept."""
    assert isinstance(error, HTTPException)
    where = request.url.path, record_of(request.scope).request_id
    if error.status_code == 404:
        return error_answer(_nothing_here(), *where)
    message, code = "The request was refused.", None
    if error.status_code == 405:
        message, code = "This path does not take this method.", "method_not_allowed"
    refusal = Refusal(message, status=error.status_code, code=code)
    return error_answer(refusal, *where, dict(error.headers or {}))


def _nothing_here() -> Refusal:
    return Refusal("There is nothing at this path.", status=404, code="not_found")
