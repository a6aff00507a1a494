"""GET /health, /health/ready, /health/live, /metrics and /openapi.json: the server about itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from insitu.refusal import Refusal
from insitu.server.errors import JSONAnswer, draining
from insitu.server.metrics import CONTENT_TYPE
from insitu.server.service import service_of

if TYPE_CHECKING:
    from starlette.requests import Request


def _engine_stopped() -> Refusal:
    return Refusal(
        "The engine has stopped.", status=503, kind="server_error", code="engine_stopped"
    )


def _engine_late(age_s: float) -> Refusal:
    return Refusal(
        f"A step of the engine has not returned for {age_s:.0f} s.",
        status=503,
        kind="server_error",
        code="step_timeout",
        retry_after_s=5,
    )


async def ready(request: Request) -> Response:
    """Whether a new request would be taken: not while draining, not without an engine."""
    service = service_of(request)
    if service.lifecycle.is_draining:
        raise draining(service.options.retry_after_s)
    stats = service.generator.stats()
    if not stats.is_alive:
        raise _engine_stopped()
    if stats.is_late:
        raise _engine_late(stats.step_age_s)
    return JSONAnswer({"status": "ready"})


async def live(request: Request) -> Response:
    """Whether it can still answer without a restart; a drain does not end that."""
    stats = service_of(request).generator.stats()
    if not stats.is_alive:
        raise _engine_stopped()
    if stats.is_lost:
        raise _engine_late(stats.step_age_s)
    return JSONAnswer({"status": "live"})


async def metrics(request: Request) -> Response:
    """All series in Prometheus' text form."""
    # Off the event loop: it takes longer than a token of a small model.
    text = await asyncio.to_thread(service_of(request).metrics.expose)
    return Response(text, headers={"content-type": CONTENT_TYPE})


async def openapi(request: Request) -> Response:
    """The OpenAPI document of this server."""
    from insitu.server.openapi import document  # noqa: PLC0415 - slow to import

    service = service_of(request)
    has_keys = service.options.authenticate is not None
    return JSONAnswer(document(service.generator.describe(), has_keys=has_keys))
