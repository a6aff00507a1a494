"""The body of POST /v1/completions: one prompt as text or token ids.

Always true: a list of ids is checked element by element for being ids, so neither ``true`` nor
``1.0`` passes for one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.server.schema import LIMIT, MAX_ID, Neutral
from insitu.server.schema_guides import GuideFields
from insitu.server.schema_sampling import (
    NewTokens,
    Nothing,
    One,
    OnlyFalse,
    SamplingFields,
    requires,
)
from insitu.types import Request

DEFAULT_MAX_TOKENS = 16

_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID, LIMIT: "token_id"},
    "minItems": 1,
    LIMIT: "prompt",
}
_PROMPT_SCHEMA = {
    "description": "Text, or token ids; a list may hold exactly one of either.",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 1},
    ],
}


def parse_prompt(value: Any) -> str | tuple[int, ...]:
    """A prompt out of OpenAI's four forms; a list of several prompts is refused."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise PydanticCustomError("prompts", "one prompt a request; send several requests")
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("prompt", "must be a string or a list of token ids")
    if not value:
        raise PydanticCustomError("prompt", "must not be an empty list")
    for index, item in enumerate(value):
        if type(item) is not int or not 0 <= item <= MAX_ID:
            place = {"index": index}
            raise PydanticCustomError("prompt", "element {index} is not a token id", place)
    return tuple(value)


_ONE_OF_ONE: dict[str, Any] = {
    "if": {"properties": {"best_of": {"type": "integer"}}, "required": ["best_of"]},
    "then": {"properties": {"n": {"enum": [1, None]}}},
}


class CompletionRequest(SamplingFields, GuideFields):
    """A text to be continued."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [requires("stream_options", "object", "stream"), _ONE_OF_ONE],
        }
    )

    prompt: Annotated[
        str | tuple[int, ...], PlainValidator(parse_prompt), WithJsonSchema(_PROMPT_SCHEMA)
    ]
    max_tokens: NewTokens | None = Field(None, description=f"{DEFAULT_MAX_TOKENS} when absent.")
    logprobs: Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = Field(None, description="True when absent.")
    parse_special: bool | None = Field(
        None, description="Whether the text may spell control tokens; false when absent."
    )
    best_of: Annotated[One | None, Neutral("1")] = None
    echo: Annotated[OnlyFalse | None, Neutral("false")] = None
    suffix: Nothing = None

    def to_request(self, request_id: str) -> Request:
        """What was asked, in the house's own words."""
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        special = self.add_special_tokens
        if self.best_of is not None and self.n not in {None, 1}:
            message = "best_of is only allowed where n is 1."
            raise Refusal(message, param="best_of", code="invalid_value")
        return Request(
            request_id=request_id,
            model=self.model,
            prompt=self.prompt,
            add_special_tokens=True if special is None else special,
            parse_special=bool(self.parse_special),
            sampling=self.sampling(max_tokens, self.logprobs),
            guide=self.guide(),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            timeout_s=self.timeout,
        )
