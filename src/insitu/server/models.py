"""GET /v1/models and /v1/models/{id}: what is served, by every name it answers to.

Always true: an unknown name gets the same 404 whatever it looks like, so no path can be probed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from insitu.server.errors import JSONAnswer
from insitu.server.service import is_served, service_of, unknown_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.types import ModelCard


async def list_models(request: Request) -> Response:
    """All that is served: one model, under its first name."""
    card = service_of(request).generator.describe()
    if _is_anthropic(request):
        name = card.name
        ends = {"first_id": name, "last_id": name, "has_more": False}
        return JSONAnswer({"data": [_anthropic_model(card, name)], **ends})
    return JSONAnswer({"object": "list", "data": [_model(card, card.name)]})


async def retrieve_model(request: Request) -> Response:
    """One model by any of its names."""
    card = service_of(request).generator.describe()
    name = request.path_params["model_id"]
    if not is_served(card, name):
        raise unknown_model()
    shown = _anthropic_model if _is_anthropic(request) else _model
    return JSONAnswer(shown(card, name))


def _is_anthropic(request: Request) -> bool:
    """Whether a client of Anthropic's asks, whose models have another form."""
    return "anthropic-version" in request.headers


def _anthropic_model(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "type": "model",
        "id": name,
        "display_name": card.name,
        "created_at": datetime.fromtimestamp(card.created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": card.max_model_len - 1,
        "max_tokens": card.max_model_len - 1,
    }


def _model(card: ModelCard, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": card.created,
        "owned_by": "insitu",
        "aliases": list(card.aliases),
        "architecture": card.architecture,
        "digest": card.digest,
        "size_bytes": card.size_bytes,
        "max_model_len": card.max_model_len,
        "vocab_size": card.vocab_size,
        "numeric_settings": dict(card.numeric_settings),
        "sampling_defaults": dict(card.sampling_defaults),
        "has_chat_template": card.has_chat_template,
    }
