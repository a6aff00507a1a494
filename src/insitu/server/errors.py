"""Failures, and their shape in OpenAI's API: ``{"error": {message, type, param, code}}``.

Not here: deciding what is refused. Always true: a body is valid UTF-8 and valid JSON, and what it
repeats of a caller's input is at most ``MAX_ECHO`` characters.
"""

from __future__ import annotations

import json
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from insitu.refusal import Refusal, RequestFailed
from insitu.server.lenience import renamed

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_ECHO = 100
_MAX_MESSAGE = 400
_OWN: Mapping[str, str] = MappingProxyType({})

logger = logging.getLogger("insitu.server")


class ClientGone(Exception):
    """The client closed its connection before its answer was complete."""


class ShuttingDown(Exception):
    """The grace time of a drain ended before the answer did."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def json_bytes(value: Any) -> bytes:
    """Write compact JSON. NaN and infinities are our mistake, and raise."""
    return _ENCODER.encode(value).encode("utf-8", "replace")


def clip(text: str, limit: int = MAX_ECHO) -> str:
    """Cut a caller's text to what an error may repeat."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_refusal(error: Exception, names: Mapping[str, str] = _OWN) -> Refusal:
    """Say in a caller's terms what went wrong; what only concerns us is logged instead.

    ``names``: the caller's, of our fields; refusals come with theirs.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ShuttingDown):
        return draining(1)
    if isinstance(error, RequestFailed):
        message = str(error) or "The request failed."
        kind = "server_error" if error.status >= 500 else "invalid_request_error"
        failed = Refusal(
            message, status=error.status, kind=kind, code=error.code, param=error.param
        )
        return renamed(failed, names)
    # Type and place only: the text of an unforeseen error could hold a prompt.
    logger.error("internal error: %s at %s", type(error).__name__, _place(error))
    message = "Internal error; the server goes on."
    return Refusal(message, status=500, kind="server_error", code="internal_error")


def _place(error: Exception) -> str:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " > ".join(frames[-8:])


def draining(retry_after_s: int) -> Refusal:
    """The refusal of a server that is going away."""
    return Refusal(
        "The server is shutting down.",
        status=503,
        kind="server_error",
        code="shutting_down",
        retry_after_s=retry_after_s,
    )


def error_body(refusal: Refusal) -> dict[str, Any]:
    """The error object of an answer or of an SSE event."""
    return {
        "error": {
            "message": clip(refusal.message, _MAX_MESSAGE),
            "type": refusal.kind,
            "param": None if refusal.param is None else clip(refusal.param),
            "code": refusal.code,
        }
    }


class JSONAnswer(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write the body."""
        return json_bytes(content)
