"""Other protocols' bodies as a chat: each has one table, and the chat's schema judges the result.

What a chat honours is honoured in every protocol that can say it, and what a chat refuses is
refused there under the caller's own name. Not here: the tables. Always true: a refusal never names
a field that the caller did not write.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from insitu.refusal import Refusal
from insitu.server.answer import new_id, prepare, tokenize
from insitu.server.lenience import renamed
from insitu.server.service import read_parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from starlette.requests import Request

    from insitu.server.lenience import Lenience
    from insitu.server.schema import Wire
    from insitu.server.schema_chat import ChatCompletionRequest
    from insitu.types import Prepared

WireT = TypeVar("WireT", bound="Wire")


@dataclass(frozen=True)
class Translation(Generic[WireT]):
    """How a protocol's body becomes a chat.

    ``names``: its own, of a chat's fields; ``without``: fields of a chat that it has no
    place for. All others that are no field of its own may be sent under the name they have in a
    chat (``extensions``).
    """

    model: type[WireT]
    to_chat: Callable[[WireT, Lenience], dict[str, Any]]
    names: Mapping[str, str]
    without: frozenset[str]

    @cached_property
    def extensions(self) -> frozenset[str]:
        """A chat's fields that go by the same name here."""
        from insitu.server.schema import Neutral  # noqa: PLC0415 - slow to import
        from insitu.server.schema_chat import ChatCompletionRequest  # noqa: PLC0415

        honoured = {
            name
            for name, field in ChatCompletionRequest.model_fields.items()
            if not any(isinstance(one, Neutral) for one in field.metadata)
        }
        return frozenset(honoured - set(self.model.model_fields) - set(self.names) - self.without)

    def check(
        self, value: dict[str, Any], lenience: Lenience
    ) -> tuple[WireT, ChatCompletionRequest]:
        """The body's own form, and the chat that it asks for."""
        from insitu.server.schema import parse_wire  # noqa: PLC0415 - slow to import
        from insitu.server.schema_chat import ChatCompletionRequest  # noqa: PLC0415

        extra = {name: value.pop(name) for name in self.extensions & set(value)}
        wire = parse_wire(self.model, value, lenience)
        fields = {
            name: one for name, one in self.to_chat(wire, lenience).items() if one is not None
        }
        try:
            under = lenience.under(self.names)
            return wire, parse_wire(ChatCompletionRequest, {**fields, **extra}, under)
        except Refusal as refusal:
            raise renamed(refusal, self.names) from None


async def read_translated(
    request: Request, translation: Translation[WireT]
) -> tuple[WireT, ChatCompletionRequest]:
    """Read a body of a protocol, and the chat it asks for."""
    return await read_parsed(request, translation.check)


async def prepare_chat(
    request: Request, chat: ChatCompletionRequest, request_id: str, names: Mapping[str, str]
) -> Prepared:
    """Turn a translated chat into ids."""
    try:
        asked = chat.to_request(request_id)
    except Refusal as refusal:
        raise renamed(refusal, names) from None
    return await prepare(request, asked, names=names)


async def count_chat(
    request: Request, chat: ChatCompletionRequest, names: Mapping[str, str]
) -> int:
    """How many tokens a translated chat's prompt has."""
    try:
        return len((await tokenize(request, chat.to_request(new_id("tok")))).token_ids)
    except Refusal as refusal:
        raise renamed(refusal, names) from None
