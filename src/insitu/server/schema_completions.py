"""The body of POST /v1/completions: one prompt or several, and every field of OpenAI's schema.

Not here: the forms of prompts (``schema_prompts``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import ConfigDict, Field

from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.server.schema_guides import GuideFields
from insitu.server.schema_prompts import Prompts
from insitu.server.schema_sampling import (
    NewTokens,
    Nothing,
    SamplingFields,
    requires,
)
from insitu.types import Request

DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields, GuideFields):
    """A text to be continued."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [requires("stream_options", "object", "stream")],
        }
    )

    prompt: Prompts
    max_tokens: NewTokens | None = Field(None, description=f"{DEFAULT_MAX_TOKENS} when absent.")
    logprobs: Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS)] | None = None
    add_special_tokens: bool | None = Field(None, description="True when absent.")
    parse_special: bool | None = Field(
        None, description="Whether the text may spell control tokens; false when absent."
    )
    best_of: Annotated[int, Field(ge=1, le=SamplingParams.MAX_N)] | None = Field(
        None, description="So many are made, and the n likeliest kept; not in a stream."
    )
    echo: bool | None = Field(
        None, description="Whether a text begins with its prompt; not with return_token_ids."
    )
    suffix: Nothing = None

    def to_request(self, request_id: str) -> Request:
        """What was asked, in the house's own words."""
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        special = self.add_special_tokens
        if self.best_of is not None and self.best_of != (self.n or 1) and self.stream:
            message = "best_of is only allowed in a stream where it is n."
            raise Refusal(message, param="best_of", code="invalid_value")
        self._require_echo()
        sampling = self.sampling(max_tokens, self.logprobs, self.best_of)
        if self.echo:
            sampling = replace(sampling, prompt_logprobs=self.logprobs)
        return Request(
            request_id=request_id,
            model=self.model,
            prompt=self.prompt[0],
            add_special_tokens=True if special is None else special,
            parse_special=bool(self.parse_special),
            sampling=sampling,
            guide=self.guide(),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            timeout_s=self.timeout,
        )

    def to_requests(self, request_id: str) -> list[Request]:
        """What was asked, a request for each prompt."""
        first = self.to_request(request_id)
        if len(self.prompt) * first.sampling.num_choices > SamplingParams.MAX_N:
            message = f"prompt and n ask for more than {SamplingParams.MAX_N} choices together."
            raise Refusal(message, param="prompt", code="invalid_value")
        return [first] + [
            replace(first, request_id=f"{request_id}-{place}", prompt=prompt)
            for place, prompt in enumerate(self.prompt[1:], 1)
        ]

    def _require_echo(self) -> None:
        """What a prompt can be repeated with."""
        has_logprobs = self.logprobs is not None
        for name, is_wrong in (
            ("return_token_ids", bool(self.return_token_ids)),
            ("logprobs where n is not 1", has_logprobs and self.n not in {None, 1}),
            ("logprobs and best_of", has_logprobs and self.best_of not in {None, 1}),
        ):
            if self.echo and is_wrong:
                message = f"echo is not supported together with {name}."
                raise Refusal(message, param="echo", code="unsupported_parameter")
