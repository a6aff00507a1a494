"""POST /v1/messages and /v1/messages/count_tokens: one request whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.server.answer import answer, new_id
from insitu.server.anthropic.shape import MessageShape
from insitu.server.errors import JSONAnswer
from insitu.server.record import record_of
from insitu.server.service import service_of
from insitu.server.translated import count_chat, prepare_chat, read_translated

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def create_message(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    from insitu.server.anthropic.to_chat import MESSAGES, NAMES  # noqa: PLC0415 - slow to import

    wire, chat = await read_translated(request, MESSAGES)
    prepared = await prepare_chat(request, chat, new_id("msg", "_"), NAMES)
    model = service_of(request).generator.describe().name
    shape = MessageShape(prepared, model, record_of(request.scope).request_id)
    return await answer(request, prepared, shape, is_stream=bool(wire.stream))


async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation's prompt has; nothing is run."""
    from insitu.server.anthropic.to_chat import COUNT_TOKENS, NAMES  # noqa: PLC0415 - slow

    _, chat = await read_translated(request, COUNT_TOKENS)
    return JSONAnswer({"input_tokens": await count_chat(request, chat, NAMES)})
