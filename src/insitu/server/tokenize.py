"""POST /v1/tokenize and /v1/detokenize: ids of a text or of messages, and text of ids.

Always true: nothing is run, and the ids are those a completion of the same input would start from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.answer import new_id
from insitu.server.answer import tokenize as tokenize_asked
from insitu.server.errors import JSONAnswer
from insitu.server.record import record_of
from insitu.server.service import is_served, read_parsed, read_wire, service_of, unknown_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.server.lenience import Lenience
    from insitu.server.schema_tokens import TokenizeMessagesRequest, TokenizePromptRequest


async def tokenize(request: Request) -> Response:
    """Ids of a prompt; of messages, the rendered prompt too."""
    asked = (await read_parsed(request, _tokenize_wire)).to_request(new_id("tok"))
    tokenized = await tokenize_asked(request, asked)
    answer: dict[str, Any] = {
        "tokens": list(tokenized.token_ids),
        "count": len(tokenized.token_ids),
    }
    if asked.messages is not None:
        answer["prompt"] = tokenized.prompt_text
    if tokenized.warnings:
        answer["warnings"] = list(tokenized.warnings)
    return JSONAnswer(answer)


def _tokenize_wire(
    value: dict[str, Any], lenience: Lenience
) -> TokenizePromptRequest | TokenizeMessagesRequest:
    from insitu.server.schema import parse_wire  # noqa: PLC0415 - slow to import
    from insitu.server.schema_tokens import (  # noqa: PLC0415 - slow to import
        TokenizeMessagesRequest,
        TokenizePromptRequest,
    )

    if "messages" not in value:
        return parse_wire(TokenizePromptRequest, value, lenience)
    if "prompt" in value:
        message = "Give either prompt or messages, not both."
        raise Refusal(message, param="prompt", code="invalid_value")
    return parse_wire(TokenizeMessagesRequest, value, lenience)


async def detokenize(request: Request) -> Response:
    """Text of ids, control tokens shown."""
    from insitu.server.schema_tokens import DetokenizeRequest  # noqa: PLC0415 - slow to import

    service = service_of(request)
    wire = await read_wire(request, DetokenizeRequest)
    card = service.generator.describe()
    if not is_served(card, wire.model):
        raise unknown_model()
    record = record_of(request.scope)
    record.model = card.name
    answer: dict[str, Any] = {"prompt": await service.generator.detokenize(wire.tokens)}
    if record.warnings:
        answer["warnings"] = record.warnings
    return JSONAnswer(answer)
