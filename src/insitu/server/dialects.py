"""How each protocol that is spoken here frames a stream and words a failure.

Not here: what an answer says (``shape`` and the protocols' own). Always true: the path alone
decides the protocol, so that what fails before a route is reached is worded like everything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.server.errors import JSONAnswer, error_body, json_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.responses import Response

    from insitu.refusal import Refusal

_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Dialect:
    """A stream's media type, how one object of it is framed, its last bytes; and failures."""

    media_type: str
    frame: Callable[[dict[str, Any]], bytes]
    last: bytes
    failure: Callable[[Refusal, str], dict[str, Any]]  # the refusal, the request's id


def _data(value: dict[str, Any]) -> bytes:
    return b"data: " + json_bytes(value) + b"\n\n"


def _named(value: dict[str, Any]) -> bytes:
    return b"event: " + str(value["type"]).encode() + b"\ndata: " + json_bytes(value) + b"\n\n"


def _line(value: dict[str, Any]) -> bytes:
    return json_bytes(value) + b"\n"


_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def _openai_failure(refusal: Refusal, _: str) -> dict[str, Any]:
    return error_body(refusal)


def _anthropic_failure(refusal: Refusal, request_id: str) -> dict[str, Any]:
    kind = "invalid_request_error" if refusal.status < 500 else "api_error"
    error = {**error_body(refusal)["error"], "type": _ANTHROPIC_KINDS.get(refusal.status, kind)}
    return {"type": "error", "error": error, "request_id": request_id}


def _ollama_failure(refusal: Refusal, _: str) -> dict[str, Any]:
    error = error_body(refusal)["error"]
    return {"error": error["message"], "param": error["param"], "code": error["code"]}


OPENAI = Dialect(_EVENTS, _data, b"data: [DONE]\n\n", _openai_failure)
RESPONSES = Dialect(_EVENTS, _named, b"", _openai_failure)
ANTHROPIC = Dialect(_EVENTS, _named, b"", _anthropic_failure)
OLLAMA = Dialect("application/x-ndjson", _line, b"", _ollama_failure)

_BY_PREFIX = (("/v1/messages", ANTHROPIC), ("/api/", OLLAMA), ("/v1/responses", RESPONSES))


def dialect_of(path: str) -> Dialect:
    """The protocol of a path, whether or not there is anything at it."""
    return next((dialect for prefix, dialect in _BY_PREFIX if path.startswith(prefix)), OPENAI)


def error_answer(
    refusal: Refusal, path: str, request_id: str, headers: dict[str, str] | None = None
) -> Response:
    """A refusal as an HTTP answer with its status, in the words of the path's protocol."""
    headers = dict(headers or {})
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(refusal.retry_after_s)
    if refusal.status == 401:
        headers["www-authenticate"] = "Bearer"
    if refusal.status in {408, 413, 431}:
        # What is left of the request is not read, so the connection cannot be used again.
        headers["connection"] = "close"
    body = dialect_of(path).failure(refusal, request_id)
    return JSONAnswer(body, status_code=refusal.status, headers=headers)
