"""What every endpoint is given: the Generator, the options, and the server's own state.

Always true: one ``Service`` an app, found through the request, never a global.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from insitu.refusal import Refusal
from insitu.server.body import (
    LARGE_BODY_BYTES,
    BodyAccount,
    BodyBudget,
    parse_json,
    read_body,
)
from insitu.server.lenience import Lenience, lenience_of
from insitu.server.record import record_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from insitu.server.lifecycle import Lifecycle
    from insitu.server.metrics import Metrics
    from insitu.server.options import ServerOptions
    from insitu.server.schema import Wire
    from insitu.types import Generator, ModelCard

    WireT = TypeVar("WireT", bound=Wire)
    T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Service:
    """The rooms an endpoint may use."""

    generator: Generator
    options: ServerOptions
    metrics: Metrics
    lifecycle: Lifecycle
    bodies: BodyBudget


def service_of(request: Request) -> Service:
    """The service of the app that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


async def read_parsed(request: Request, check: Callable[[dict[str, Any], Lenience], T]) -> T:
    """Read a body, parse its JSON and check the object, a large one off the event loop."""
    service = service_of(request)
    options = service.options
    lenience = lenience_of(request)
    record = record_of(request.scope)
    account = record.body = BodyAccount(service.bodies)
    body = await read_body(request, options.max_body_bytes, options.body_timeout_s, account)
    if len(body) > LARGE_BODY_BYTES:
        async with service.bodies.turn_of(account):
            checked = await asyncio.to_thread(lambda: check(parse_json(body), lenience))
    else:
        checked = check(parse_json(body), lenience)
    record.warnings += lenience.warnings
    return checked


async def read_wire(request: Request, model: type[WireT]) -> WireT:
    """Read a body and check it against its model."""
    from insitu.server.schema import parse_wire  # noqa: PLC0415 - slow to import

    return await read_parsed(request, partial(parse_wire, model))


def is_served(card: ModelCard, name: str) -> bool:
    """Whether a name means the model that is served."""
    return name in {card.name, "default", *card.aliases}


def unknown_model() -> Refusal:
    """The refusal of a model's name: the same text whatever the name, which it does not repeat."""
    return Refusal(
        "The model does not exist or is not served here; GET /v1/models lists those that are.",
        param="model",
        code="model_not_found",
        status=404,
    )
