"""Fields that chat and text completions share: sampling, stopping, streaming, and neutral ones.

Always true: what is accepted here is honoured, or asks nothing of us.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.server.limits import MAX_STOP_IDS
from insitu.server.schema import LIMIT, MAX_ID, Neutral, Wire
from insitu.server.schema_choosing import ChoosingFields

StopString = Annotated[str, Field(min_length=1, max_length=SamplingParams.MAX_STOP_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=MAX_ID, json_schema_extra={LIMIT: "token_id"})]
NewTokens = Annotated[int, Field(ge=1, le=MAX_ID, json_schema_extra={LIMIT: "new_tokens"})]
CacheSalt = Annotated[
    Annotated[str, Field(min_length=1, max_length=256)] | None,
    Field(description="Only requests of the same tenant with the same text share a prefix."),
]
Priority = Annotated[
    Annotated[int, Field(ge=-1000, le=1000)] | None,
    Field(description="Lower runs earlier; 0 when absent."),
]
Timeout = Annotated[
    Annotated[float, Field(gt=0, le=86_400)] | None,
    Field(description="Seconds after which the request fails; at most the server's own limit."),
]
ModelName = Annotated[
    str,
    Field(
        description="A served name, or `default`.",
        examples=["default"],
        json_schema_extra={LIMIT: "model"},
    ),
]
Nothing = Annotated[None, Neutral("null")]


def _refuse_true(value: bool) -> bool:
    if value:
        raise PydanticCustomError("only_false", "must be false")
    return value


# Not Literal[False]: 0 equals False, and would pass for it.
OnlyFalse = Annotated[
    bool, AfterValidator(_refuse_true), WithJsonSchema({"type": "boolean", "const": False})
]


def requires(field: str, kind: str, needed: str) -> dict[str, Any]:
    """JSON schema for: where a field is given, another must be true."""
    return {
        "if": {"properties": {field: {"type": kind}}, "required": [field]},
        "then": {"properties": {needed: {"const": True}}, "required": [needed]},
    }


class StreamOptions(Wire):
    """What a stream carries beside its deltas."""

    include_usage: bool | None = Field(None, description="A last chunk that holds the usage.")
    include_obfuscation: OnlyFalse | None = Field(None, description="Only false.")


class SamplingFields(ChoosingFields):
    """How tokens are chosen, and when to stop."""

    model_config = ConfigDict(
        json_schema_extra={"allOf": [requires("stream_options", "object", "stream")]}
    )

    model: ModelName
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = Field(
        None, description="Drawn when absent; the answer reports it either way."
    )
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=SamplingParams.MAX_STOP, fail_fast=True)]
        | None
    ) = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None
    ) = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="Only where stream is true.")
    return_token_ids: bool | None = None
    n: Annotated[int, Field(ge=1, le=SamplingParams.MAX_N)] | None = Field(
        None, description="1 when absent."
    )
    user: str | None = None
    cache_salt: CacheSalt = None
    priority: Priority = None
    timeout: Timeout = None

    @property
    def has_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(
        self, max_tokens: int | None, logprobs: int | None, best_of: int | None = None
    ) -> SamplingParams:
        """The sampling parameters asked for; absent fields are left to the model."""
        if self.stream_options is not None and not self.stream:
            message = "stream_options is only allowed where stream is true."
            raise Refusal(message, param="stream_options", code="invalid_value")
        stop = self.stop or ()
        return SamplingParams(
            max_tokens=max_tokens,
            seed=self.seed,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            ignore_eos=bool(self.ignore_eos),
            logprobs=logprobs,
            n=1 if self.n is None else self.n,
            best_of=best_of,
            **self.choosing_words(),
        )
