"""The body of POST /v1/batches. Always true: what is not honoured is refused by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from insitu.server.schema import Neutral, Wire
from insitu.server.schema_sampling import Nothing

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]
Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class CreateBatch(Wire):
    """Run the lines of a file."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Field(max_length=16)] | None = None
    output_expires_after: Annotated[Nothing, Neutral("null")] = None
