"""POST /api/embed and the older /api/embeddings: vectors in Ollama's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.answer import new_id
from insitu.server.record import record_of
from insitu.server.service import read_wire, service_of
from insitu.server.vectors import answer, as_numbers
from insitu.server.vectors import embed as embed_all

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.server.ollama.schema_embed import EmbedFields
    from insitu.server.vectors import Vectors


async def embed(request: Request) -> Response:
    """The vector of every input."""
    from insitu.server.ollama.schema_embed import EmbedRequest  # noqa: PLC0415 - slow to import
    from insitu.server.schema_embeddings import paths_of  # noqa: PLC0415

    wire = await read_wire(request, EmbedRequest)
    made = await _embedded(request, wire, wire.input, paths_of(wire.input))
    record = record_of(request.scope)

    def write() -> str:
        return f'"embeddings":[{",".join(map(as_numbers, made.all))}]'

    rest = {
        "model": service_of(request).generator.describe().name,
        "total_duration": round(record.duration_s * 1e9),
        "load_duration": 0,
        "prompt_eval_count": made.usage.prompt_tokens,
        **_notes(made),
    }
    return await answer(write, rest)


async def embed_one(request: Request) -> Response:
    """The vector of one text."""
    from insitu.server.ollama.schema_embed import EmbedOneRequest  # noqa: PLC0415 - slow to import

    wire = await read_wire(request, EmbedOneRequest)
    made = await _embedded(request, wire, (wire.prompt,), ["prompt"])
    model = service_of(request).generator.describe().name
    return await answer(
        lambda: f'"embedding":{as_numbers(made.all[0])}', {"model": model, **_notes(made)}
    )


async def _embedded(
    request: Request, wire: EmbedFields, prompts: tuple[str, ...], paths: list[str]
) -> Vectors:
    card = service_of(request).generator.describe()
    asked = wire.requests(new_id("ollama"), prompts, card.max_model_len)
    return await embed_all(request, asked, paths)


def _notes(made: Vectors) -> dict[str, Any]:
    return {"warnings": list(made.warnings)} if made.warnings else {}
