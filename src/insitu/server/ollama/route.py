"""POST /api/chat and /api/generate: one request whole; and what Ollama's clients ask beside."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.answer import answer, new_id, prepare
from insitu.server.errors import JSONAnswer
from insitu.server.ollama.shape import OllamaShape, now
from insitu.server.record import record_of
from insitu.server.service import is_served, read_wire, service_of, unknown_model
from insitu.server.shape import version
from insitu.server.translated import prepare_chat, read_translated

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.server.ollama.schema import ChatRequest, GenerateRequest
    from insitu.server.schema_chat import ChatCompletionRequest
    from insitu.types import ModelCard, Prepared


async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as lines."""
    from insitu.server.ollama.to_chat import CHAT, NAMES  # noqa: PLC0415 - slow to import

    wire, asked = await read_translated(request, CHAT)
    if not wire.messages:
        return _loaded(request, wire.model, {"message": {"role": "assistant", "content": ""}})
    prepared = await prepare_chat(request, asked, new_id("ollama"), NAMES)
    return await _answer(request, wire, prepared, is_chat=True)


async def generate(request: Request) -> Response:
    """Answer a prompt, or continue a raw one, whole or as lines."""
    from insitu.server.ollama.to_chat import GENERATE, NAMES  # noqa: PLC0415 - slow to import

    wire, asked = await read_translated(request, GENERATE)
    if not wire.prompt:
        return _loaded(request, wire.model, {"response": ""})
    if wire.raw:
        prepared = await _prepare_raw(request, wire.prompt, asked)
    else:
        prepared = await prepare_chat(request, asked, new_id("ollama"), NAMES)
    return await _answer(request, wire, prepared, is_chat=False)


async def _prepare_raw(request: Request, prompt: str, asked: ChatCompletionRequest) -> Prepared:
    """A prompt as it is: its control tokens are spelled in it."""
    from insitu.server.ollama.to_chat import NAMES  # noqa: PLC0415 - slow to import

    plain = replace(
        asked.to_request(new_id("ollama")), messages=None, prompt=prompt, parse_special=True
    )
    return await prepare(request, plain, names=NAMES)


async def _answer(
    request: Request, wire: ChatRequest | GenerateRequest, prepared: Prepared, *, is_chat: bool
) -> Response:
    card = service_of(request).generator.describe()
    num_ctx = wire.options.num_ctx if wire.options else None
    if num_ctx is not None:
        prepared = _within(prepared, num_ctx, card)
    shape = OllamaShape(
        prepared,
        card.name,
        record_of(request.scope),
        is_chat=is_chat,
        has_logprobs=bool(wire.logprobs),
    )
    return await answer(request, prepared, shape, is_stream=wire.stream is not False)


def _within(prepared: Prepared, num_ctx: int, card: ModelCard) -> Prepared:
    """A request whose prompt and answer fit a smaller context than the model's."""
    if num_ctx > card.max_model_len:
        raise _refused(f"The model is served with a context of {card.max_model_len} tokens.")
    room = num_ctx - prepared.num_prompt_tokens
    asked = prepared.request.sampling.max_tokens
    if room < 1 or (asked is not None and asked > room):
        raise _refused(f"The prompt has {prepared.num_prompt_tokens} tokens: too many for num_ctx.")
    return replace(prepared, max_tokens=min(prepared.max_tokens, room))


def _refused(message: str) -> Refusal:
    return Refusal(message, param="options.num_ctx", code="context_length_exceeded")


def _loaded(request: Request, model: str, said: dict[str, Any]) -> Response:
    """The answer to a request that only wants the model loaded, as it is."""
    name = _served(request, model).name
    head = {"model": name, "created_at": now()}
    return JSONAnswer({**head, **said, "done": True, "done_reason": "load"})


def _served(request: Request, model: str) -> ModelCard:
    card = service_of(request).generator.describe()
    if not is_served(card, model.removesuffix(":latest")):
        raise unknown_model()
    return card


async def tags(request: Request) -> Response:
    """What is served, and so what is here."""
    card = service_of(request).generator.describe()
    return JSONAnswer({"models": [{**_listed(card), "modified_at": _created(card)}]})


async def running(request: Request) -> Response:
    """What is loaded: the same, for as long as the server runs."""
    card = service_of(request).generator.describe()
    model = {**_listed(card), "size_vram": 0, "context_length": card.max_model_len}
    return JSONAnswer({"models": [model]})


async def show(request: Request) -> Response:
    """What there is to know of the model."""
    from insitu.server.ollama.schema import ShowRequest  # noqa: PLC0415 - slow to import

    wire = await read_wire(request, ShowRequest)
    card = _served(request, wire.model)
    info = {
        "general.architecture": card.architecture,
        f"{card.architecture}.context_length": card.max_model_len,
        f"{card.architecture}.embedding_length": card.embedding_size,
        f"{card.architecture}.vocab_size": card.vocab_size,
    }
    able = (
        ["completion", "embedding"] + ["tools"] * card.has_tools + ["thinking"] * card.has_reasoning
    )
    answer = {"details": _details(card), "model_info": info, "capabilities": able}
    return JSONAnswer({**answer, "modified_at": _created(card)})


async def tell_version(_: Request) -> Response:
    """Which insitu this is."""
    return JSONAnswer({"version": version()})


def _listed(card: ModelCard) -> dict[str, Any]:
    return {
        "name": card.name,
        "model": card.name,
        "size": card.size_bytes,
        "digest": card.digest.removeprefix("sha256:"),
        "details": _details(card),
    }


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": "",
        "quantization_level": "",
    }


def _created(card: ModelCard) -> str:
    return datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
