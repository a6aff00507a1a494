"""The bodies of POST /api/embed and /api/embeddings.

Always true: of options only the context's length means something here; all others are refused by
name unless they are null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.refusal import Refusal
from insitu.server.limits import MAX_INPUTS
from insitu.server.ollama.schema import KeepAlive
from insitu.server.schema import MAX_ID, Wire
from insitu.server.schema_embeddings import EmbeddingFields
from insitu.server.schema_sampling import Nothing

if TYPE_CHECKING:
    from insitu.types import Request


def _texts(value: object) -> tuple[str, ...]:
    """A text, or several."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise PydanticCustomError("texts", "must be a text, or a list of texts that is not empty")
    if len(texts) > MAX_INPUTS:
        raise PydanticCustomError("texts", "up to {most} a request", {"most": MAX_INPUTS})
    for index, one in enumerate(texts):
        if not isinstance(one, str):
            raise PydanticCustomError("texts", "element {index} is not a text", {"index": index})
    return tuple(texts)


_SEVERAL = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_INPUTS}
Texts = Annotated[
    tuple[str, ...],
    PlainValidator(_texts),
    WithJsonSchema({"anyOf": [{"type": "string"}, _SEVERAL]}),
]


class EmbedOptions(Wire):
    """What of Ollama's options an embedding can have; clients send the others as null."""

    num_ctx: Annotated[int, Field(ge=1, le=MAX_ID)] | None = Field(
        None, description="The most tokens of an input; at most the served model's length."
    )
    mirostat: Nothing = None
    mirostat_eta: Nothing = None
    mirostat_tau: Nothing = None
    num_gpu: Nothing = None
    num_thread: Nothing = None
    num_predict: Nothing = None
    repeat_last_n: Nothing = None
    repeat_penalty: Nothing = None
    seed: Nothing = None
    stop: Nothing = None
    temperature: Nothing = None
    tfs_z: Nothing = None
    top_k: Nothing = None
    top_p: Nothing = None


class EmbedFields(EmbeddingFields):
    """What both bodies hold."""

    options: EmbedOptions | None = None
    keep_alive: KeepAlive | None = None

    def requests(
        self, request_id: str, prompts: tuple[str, ...], max_model_len: int
    ) -> list[Request]:
        """What was asked, a request for each text."""
        most = self.options.num_ctx if self.options else None
        if most is not None and most > max_model_len:
            message = f"The model is served with a context of {max_model_len} tokens."
            raise Refusal(message, param="options.num_ctx", code="context_length_exceeded")
        return self.requests_for(request_id, self.model.removesuffix(":latest"), prompts, most)


class EmbedRequest(EmbedFields):
    """Texts whose vectors are wanted."""

    input: Texts


class EmbedOneRequest(EmbedFields):
    """A text whose vector is wanted."""

    prompt: str
