"""Other protocols' bodies as a chat: each has one table, and the chat's schema judges the result.

What a chat honours is honoured in every protocol that can say it, and what a chat refuses is
refused there under the caller's own name. Not here: the tables. Always true: a refusal never names
a field that the caller did not write.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from insitu.refusal import Refusal
from insitu.server.answer import prepare
from insitu.server.service import read_parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from insitu.server.lenience import Lenience
    from insitu.server.schema import Wire
    from insitu.server.schema_chat import ChatCompletionRequest
    from insitu.types import Prepared

    WireT = TypeVar("WireT", bound=Wire)


async def read_translated(
    request: Request,
    model: type[WireT],
    translate: Callable[[WireT], dict[str, Any]],
    names: Mapping[str, str],
) -> tuple[WireT, ChatCompletionRequest]:
    """Read a body of a protocol, and the chat it asks for; ``names``: the caller's, of a chat's."""
    return await read_parsed(request, partial(_check, model, translate, names))


def _check(
    model: type[WireT],
    translate: Callable[[WireT], dict[str, Any]],
    names: Mapping[str, str],
    value: dict[str, Any],
    lenience: Lenience,
) -> tuple[WireT, ChatCompletionRequest]:
    from insitu.server.schema import parse_wire  # noqa: PLC0415 - slow to import
    from insitu.server.schema_chat import ChatCompletionRequest  # noqa: PLC0415 - slow to import

    wire = parse_wire(model, value, lenience)
    fields = {name: one for name, one in translate(wire).items() if one is not None}
    try:
        return wire, parse_wire(ChatCompletionRequest, fields, lenience)
    except Refusal as refusal:
        raise renamed(refusal, names) from None


async def prepare_chat(
    request: Request, chat: ChatCompletionRequest, request_id: str, names: Mapping[str, str]
) -> Prepared:
    """Turn a translated chat into ids."""
    try:
        asked = chat.to_request(request_id)
    except Refusal as refusal:
        raise renamed(refusal, names) from None
    return await prepare(request, asked, names=names)


def renamed(refusal: Refusal, names: Mapping[str, str]) -> Refusal:
    """A refusal of a chat's field under the caller's name for it."""
    if refusal.param is None:
        return refusal
    for ours, theirs in names.items():
        rest = refusal.param[len(ours) :]
        if refusal.param.startswith(ours) and (not rest or rest[0] in ".["):
            # What lies below has another form there.
            message = refusal.message.replace(refusal.param, theirs).replace(ours, theirs)
            refusal.param, refusal.message, refusal.args = theirs, message, (message,)
            break
    return refusal
