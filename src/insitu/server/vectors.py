"""Embed the prompts of one request, and write their vectors as JSON.

Not here: the form of an answer (``embeddings``, ``ollama/embed``). Always true: all prompts are
checked before one is run; a failure names the prompt that it is of; numbers are written so that
they give the same float32 when they are read, off the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.responses import Response

from insitu.refusal import Refusal, RequestFailed
from insitu.server.answer import collect, prepare
from insitu.server.errors import json_bytes
from insitu.server.limits import MAX_INPUT_TOKENS, MAX_NUMBERS
from insitu.server.record import record_of
from insitu.server.service import service_of
from insitu.server.several import side_by_side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.requests import Request

    from insitu.types import Delta, Prepared, Usage
    from insitu.types import Request as Asked

# So many prompts of one request are with the engine at a time: a long list leaves room for others.
NUM_AT_A_TIME = 8


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of a request's prompts in their order, and what they took."""

    all: Sequence[bytes]
    usage: Usage
    warnings: Sequence[str]


async def embed(request: Request, asked: Sequence[Asked], paths: Sequence[str]) -> Vectors:
    """Run prompts; ``paths`` are where the body has them."""
    generator, record = service_of(request).generator, record_of(request.scope)
    _require_room(len(asked), asked[0], generator.describe().embedding_size)
    prepared: list[Prepared] = []
    warnings = list(record.warnings)
    for one, path in zip(asked, paths, strict=True):
        # A tenant's tokens: there is no max_tokens to make smaller.
        names = {"prompt": path, "max_tokens": path}
        is_last = len(prepared) == len(asked) - 1
        ready = await prepare(request, one, names=names, is_last=is_last)
        _require_few_tokens(record.prompt_tokens or 0)
        told = ready.warnings[len(record.warnings) :]
        warnings += [f"{path}: {text}" for text in told]
        # A list's texts need not be kept beside their ids.
        as_ids = replace(ready.request, prompt=ready.prompt_ids)
        prepared.append(replace(ready, request=as_ids, prompt_text=None, warnings=()))
    streams = [
        _naming(path, generator.stream(one, record.caller))
        for one, path in zip(prepared, paths, strict=True)
    ]
    deltas, usage = await collect(request, side_by_side(streams, 1, NUM_AT_A_TIME))
    vectors = {delta.index: delta.vector for delta in deltas if delta.vector is not None}
    return Vectors([vectors[place] for place in range(len(prepared))], usage, warnings)


def _require_room(num_prompts: int, first: Asked, embedding_size: int) -> None:
    assert first.embedding is not None
    size = min(first.embedding.dimensions or embedding_size, embedding_size)
    if num_prompts * size > MAX_NUMBERS:
        raise Refusal(
            f"{num_prompts} vectors of {size} numbers are more than the {MAX_NUMBERS} numbers of "
            "one answer: ask for fewer at a time.",
            param="input",
            code="invalid_value",
        )


def _require_few_tokens(num_tokens: int) -> None:
    if num_tokens > MAX_INPUT_TOKENS:
        message = f"The inputs have more than {MAX_INPUT_TOKENS} tokens together."
        raise Refusal(message, param="input", code="invalid_value")


async def _naming(path: str, deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
    """The same; what fails inside says of which prompt."""
    try:
        async for delta in deltas:
            yield delta
    except RequestFailed as error:
        raise RequestFailed(
            f"{path}: {error}", code=error.code, status=error.status, param=error.param or path
        ) from error
    finally:
        if (aclose := getattr(deltas, "aclose", None)) is not None:
            await aclose()


def as_numbers(vector: bytes) -> str:
    """A list of numbers, nine digits each: as many as tell one float32 from all others."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    written = (f"{one:.9g}" if one % 1 else f"{one:.1f}" for one in numbers)
    return f"[{','.join(written)}]"


def as_base64(vector: bytes) -> str:
    """A string: the float32 numbers, the lowest byte of each first."""
    return f'"{base64.b64encode(vector).decode("ascii")}"'


async def answer(write: Callable[[], str], rest: Mapping[str, object]) -> Response:
    """The fields that ``write`` writes (``"name":value``), and the rest."""
    body = await asyncio.to_thread(lambda: write().encode("ascii"))
    whole = b"{" + body + b"," + json_bytes(rest)[1:]
    return Response(whole, media_type="application/json")
