"""POST /v1/embeddings: texts or ids, and the vector of each.

Always true: vectors come in the order of the inputs, each the same as if it had been alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.answer import new_id
from insitu.server.service import read_wire, service_of
from insitu.server.vectors import answer, as_base64, as_numbers, embed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def create_embeddings(request: Request) -> Response:
    """Embed every input."""
    from insitu.server.schema_embeddings import (  # noqa: PLC0415 - slow to import
        EmbeddingsRequest,
    )

    wire = await read_wire(request, EmbeddingsRequest)
    made = await embed(request, wire.to_requests(new_id("embd")), wire.paths)
    shown = as_base64 if wire.encoding_format == "base64" else as_numbers

    def write() -> str:
        items = (
            f'{{"object":"embedding","index":{index},"embedding":{shown(vector)}}}'
            for index, vector in enumerate(made.all)
        )
        return f'"object":"list","data":[{",".join(items)}]'

    num_tokens = made.usage.prompt_tokens
    rest: dict[str, Any] = {
        "model": service_of(request).generator.describe().name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    if made.warnings:
        rest["warnings"] = list(made.warnings)
    return await answer(write, rest)
