"""POST /v1/responses: one request whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from insitu.server.answer import answer, new_id
from insitu.server.responses.shape import ResponseShape
from insitu.server.service import service_of
from insitu.server.shape import fingerprint
from insitu.server.translated import prepare_chat, read_translated

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.server.responses.schema import ResponsesRequest
    from insitu.types import ModelCard, Prepared

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)


async def create_response(request: Request) -> Response:
    """Answer input items, whole or as a stream."""
    from insitu.server.responses.schema import LOGPROBS  # noqa: PLC0415 - slow to import
    from insitu.server.responses.to_chat import NAMES, RESPONSES  # noqa: PLC0415 - slow to import

    wire, chat = await read_translated(request, RESPONSES)
    prepared = await prepare_chat(request, chat, new_id("resp", "_"), NAMES)
    fields = _fields(service_of(request).generator.describe(), prepared, wire)
    shape = ResponseShape(fields, has_logprobs=LOGPROBS in (wire.include or ()))
    return await answer(request, prepared, shape, is_stream=bool(wire.stream))


def _fields(card: ModelCard, prepared: Prepared, wire: ResponsesRequest) -> dict[str, Any]:
    """What a response says from its first event to its last."""
    chosen = prepared.request.sampling.over(card.sampling_defaults)
    tools = [one.model_dump() for one in wire.tools or ()]
    choice = wire.tool_choice or "auto"
    fields: dict[str, Any] = {
        "id": prepared.request.request_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": card.name,
        "system_fingerprint": fingerprint(card),
        "seed": prepared.seed,
        "background": False,
        "metadata": wire.metadata or {},
        "parallel_tool_calls": wire.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": wire.reasoning.effort if wire.reasoning else None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": chosen["temperature"],
        "text": _text(wire),
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "tools": tools,
        "top_logprobs": wire.top_logprobs or 0,
        "top_p": chosen["top_p"],
        "truncation": "disabled",
        **{name: getattr(wire, name) for name in _ECHOED},
    }
    if prepared.warnings:
        fields["warnings"] = list(prepared.warnings)
    return fields


def _text(wire: ResponsesRequest) -> dict[str, Any]:
    text: dict[str, Any] = {"format": {"type": "text"}}
    if wire.text is not None:
        text |= wire.text.model_dump(by_alias=True, exclude_none=True)
    return text
