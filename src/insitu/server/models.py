"""GET /v1/models and /v1/models/{id}: what is served, by every name it answers to.

Always true: an unknown name gets the same 404 whatever it looks like, so no path can be probed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from insitu.sampling_params import SamplingParams
from insitu.server.body import MAX_DEPTH, MAX_VALUES
from insitu.server.errors import JSONAnswer
from insitu.server.limits import (
    MAX_CHOICES,
    MAX_INPUT_TOKENS,
    MAX_INPUTS,
    MAX_NUMBERS,
    MAX_PROMPTS,
    MAX_STOP_IDS,
    MAX_TOOLS,
)
from insitu.server.service import is_served, service_of, unknown_model

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.types import ModelCard


async def list_models(request: Request) -> Response:
    """All that is served: one model, under its first name."""
    service = service_of(request)
    card = service.generator.describe()
    if _is_anthropic(request):
        name = card.name
        ends = {"first_id": name, "last_id": name, "has_more": False}
        return JSONAnswer({"data": [_anthropic_model(card, name)], **ends})
    model = _model(card, card.name, service.options.max_body_bytes)
    return JSONAnswer({"object": "list", "data": [model]})


async def retrieve_model(request: Request) -> Response:
    """One model by any of its names."""
    service = service_of(request)
    card = service.generator.describe()
    name = request.path_params["model_id"]
    if not is_served(card, name):
        raise unknown_model()
    if _is_anthropic(request):
        return JSONAnswer(_anthropic_model(card, name))
    return JSONAnswer(_model(card, name, service.options.max_body_bytes))


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


def _model(card: ModelCard, name: str, max_body_bytes: int) -> dict[str, Any]:
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
        "embedding_size": card.embedding_size,
        "numeric_settings": dict(card.numeric_settings),
        "sampling_defaults": dict(card.sampling_defaults),
        "has_chat_template": card.has_chat_template,
        "capabilities": capabilities(card),
        "limits": limits(card, max_body_bytes),
    }


def capabilities(card: ModelCard) -> dict[str, bool]:
    """What may be asked of the model; all else is refused by name."""
    return {
        "chat": card.has_chat_template,
        "completions": True,
        "echo": True,
        "logprobs": True,
        "streaming": True,
        "tools": card.has_tools,
        "reasoning": card.has_reasoning,
        "structured_output": card.has_guides,
        "embeddings": card.embedding_size > 0,
        "images": False,
        "audio": False,
    }


def limits(card: ModelCard, max_body_bytes: int) -> dict[str, int]:
    """How much one request may ask for."""
    return {
        "max_model_len": card.max_model_len,
        "body_bytes": max_body_bytes,
        "json_depth": MAX_DEPTH,
        "json_values": MAX_VALUES,
        "prompts": MAX_PROMPTS,
        "inputs": MAX_INPUTS,
        "input_tokens": MAX_INPUT_TOKENS,
        "embedding_numbers": MAX_NUMBERS,
        "choices": SamplingParams.MAX_N,
        "top_logprobs": SamplingParams.MAX_LOGPROBS,
        "stop_strings": SamplingParams.MAX_STOP,
        "stop_chars": SamplingParams.MAX_STOP_CHARS,
        "stop_token_ids": MAX_STOP_IDS,
        "logit_bias": SamplingParams.MAX_BIASES,
        "bad_words": SamplingParams.MAX_WORDS,
        "word_chars": SamplingParams.MAX_WORD_CHARS,
        "guided_choices": MAX_CHOICES,
        "tools": MAX_TOOLS,
    }
