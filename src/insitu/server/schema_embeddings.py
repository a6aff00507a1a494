"""The body of POST /v1/embeddings, and what Ollama's have in common with it.

Not here: the forms of inputs (``schema_prompts``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from insitu.server.limits import MAX_INPUTS
from insitu.server.schema import LIMIT, MAX_ID, Wire
from insitu.server.schema_prompts import Prompt, prompts_of
from insitu.server.schema_sampling import CacheSalt, ModelName, Priority, Timeout
from insitu.types import Embedding, Request

Inputs = Annotated[tuple[Prompt, ...], *prompts_of(MAX_INPUTS, "input")]
Dimensions = Annotated[int, Field(ge=1, le=MAX_ID, json_schema_extra={LIMIT: "dimensions"})]


class EmbeddingFields(Wire):
    """How prompts are embedded."""

    model: ModelName
    dimensions: Dimensions | None = Field(
        None, description="So many numbers of each vector, of length 1 again; all when absent."
    )
    truncate: bool | None = Field(
        None, description="Whether an input that is too long is cut; else it is refused."
    )
    add_special_tokens: bool | None = Field(None, description="True when absent.")
    parse_special: bool | None = Field(
        None, description="Whether the text may spell control tokens; false when absent."
    )
    cache_salt: CacheSalt = None
    priority: Priority = None
    timeout: Timeout = None

    def requests_for(
        self, request_id: str, model: str, prompts: tuple[Prompt, ...], most: int | None = None
    ) -> list[Request]:
        """What was asked in the house's own words, a request for each prompt."""
        special = self.add_special_tokens
        return [
            Request(
                request_id=f"{request_id}-{place}",
                model=model,
                prompt=prompt,
                add_special_tokens=True if special is None else special,
                parse_special=bool(self.parse_special),
                cache_salt=self.cache_salt,
                priority=self.priority or 0,
                timeout_s=self.timeout,
                embedding=Embedding(self.dimensions, most, bool(self.truncate)),
            )
            for place, prompt in enumerate(prompts)
        ]


class EmbeddingsRequest(EmbeddingFields):
    """Texts or token ids whose vectors are wanted."""

    input: Inputs
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="`float` when absent."
    )
    user: str | None = None

    @property
    def paths(self) -> list[str]:
        """Where the body has each input."""
        return paths_of(self.input)

    def to_requests(self, request_id: str) -> list[Request]:
        """What was asked, a request for each input."""
        return self.requests_for(request_id, self.model, self.input)


def paths_of(inputs: tuple[Prompt, ...]) -> list[str]:
    """Names of a body's inputs."""
    return [f"input[{place}]" for place in range(len(inputs))] if len(inputs) > 1 else ["input"]
