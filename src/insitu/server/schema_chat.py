"""The body of POST /v1/chat/completions: messages and every field OpenAI's schema knows.

Not here: templates (the Generator renders). Always true: text parts are joined by nothing, and a
``developer`` message is a ``system`` message.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.server.body import MAX_DEPTH
from insitu.server.schema import Neutral, Wire
from insitu.server.schema_guides import GuideFields, ResponseFormat
from insitu.server.schema_sampling import NewTokens, Nothing, OnlyFalse, SamplingFields, requires
from insitu.server.schema_tools import ToolFields
from insitu.types import (
    RESERVED_TEMPLATE_NAMES,
    TEMPLATE_NAME,
    Message,
    Request,
    ToolCall,
    is_template_name,
)

_MAX_KWARGS_DEPTH = 16


class TextPart(Wire):
    """A piece of a message's text."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(fail_fast=True)]


def join_content(content: str | list[TextPart] | None) -> str | None:
    """One text of a message's content; parts are joined by nothing."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text for part in content)


class SystemMessage(Wire):
    """What the model is to be."""

    role: Literal["system", "developer"]
    content: Content
    name: str | None = None


class UserMessage(Wire):
    """What a person said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class FunctionCall(Wire):
    """A tool's name and its arguments as JSON text."""

    name: str
    arguments: str


class AssistantToolCall(Wire):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Wire):
    """What the model said."""

    role: Literal["assistant"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[AssistantToolCall], Field(fail_fast=True)] | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    function_call: None = None


class ToolMessage(Wire):
    """What a tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


AnyMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]


def to_message(wire: SystemMessage | UserMessage | AssistantMessage | ToolMessage) -> Message:
    """A message in the house's own words."""
    calls: tuple[ToolCall, ...] = ()
    reasoning = None
    if isinstance(wire, AssistantMessage):
        reasoning = wire.reasoning_content
        calls = tuple(
            ToolCall(call.id, call.function.name, call.function.arguments)
            for call in wire.tool_calls or ()
        )
    return Message(
        role="system" if wire.role == "developer" else wire.role,
        content=join_content(wire.content),
        name=wire.name,
        tool_calls=calls,
        tool_call_id=wire.tool_call_id if isinstance(wire, ToolMessage) else None,
        reasoning_content=reasoning,
    )


def _check_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    for name in kwargs:
        if name in RESERVED_TEMPLATE_NAMES:
            raise PydanticCustomError("reserved", "the name {name} is reserved", {"name": name})
        if not is_template_name(name):
            raise PydanticCustomError("name", "a name must be made of A-Z a-z 0-9 _")
    level: list[Any] = list(kwargs.values())
    for _ in range(_MAX_KWARGS_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, float) and value in {float("inf"), float("-inf")}:
                raise PydanticCustomError("finite", "numbers must be finite")
        if not below:
            return kwargs
        level = below
    raise PydanticCustomError("depth", "nested too deep")


Kwargs = Annotated[
    dict[str, Any],
    AfterValidator(_check_kwargs),
    Field(
        description="Variables of the chat template; names the server sets itself are reserved.",
        json_schema_extra={
            "propertyNames": {
                "pattern": f"^{TEMPLATE_NAME.pattern}$",
                "not": {"enum": sorted(RESERVED_TEMPLATE_NAMES)},
            },
        },
    ),
]


class ChatFields(Wire):
    """What turns messages into a prompt."""

    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    add_generation_prompt: bool | None = None
    chat_template_kwargs: Kwargs | None = None

    def chat_words(self) -> dict[str, Any]:
        """The fields of a ``types.Request`` that messages fill."""
        wanted = self.add_generation_prompt
        return {
            "messages": tuple(to_message(message) for message in self.messages),
            "add_generation_prompt": True if wanted is None else wanted,
            "template_kwargs": dict(self.chat_template_kwargs or {}),
        }


class ChatCompletionRequest(SamplingFields, ChatFields, ToolFields, GuideFields):
    """A chat to be continued by one answer."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                requires("stream_options", "object", "stream"),
                requires("top_logprobs", "integer", "logprobs"),
            ]
        }
    )

    max_tokens: NewTokens | None = Field(None, description="To the end of the context when absent.")
    max_completion_tokens: NewTokens | None = Field(
        None, description="The same as max_tokens; both with different values are refused."
    )
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS)] | None = Field(
        None, description="Only where logprobs is true."
    )

    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    store: Annotated[OnlyFalse | None, Neutral("false")] = None
    service_tier: Annotated[Literal["auto", "default"] | None, Neutral('"auto" or "default"')] = (
        None
    )
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[Literal["in_memory"] | None, Neutral('"in_memory"')] = None
    response_format: ResponseFormat | None = None
    modalities: Annotated[
        Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None,
        Neutral('["text"]'),
    ] = None
    verbosity: Annotated[Literal["medium"] | None, Neutral('"medium"')] = None
    functions: Annotated[
        Annotated[list[Any], Field(max_length=0)] | None, Neutral("an empty list")
    ] = None
    function_call: Annotated[Literal["none"] | None, Neutral('"none"')] = None
    audio: Nothing = None
    moderation: Nothing = None
    prediction: Nothing = None
    prompt_cache_options: Nothing = None
    web_search_options: Nothing = None

    @property
    def limit_field(self) -> str:
        """Under which of its names the limit on tokens was given."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    def to_request(self, request_id: str) -> Request:
        """What was asked, in the house's own words."""
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise Refusal(
                "max_tokens and max_completion_tokens differ; give one of them.",
                param="max_completion_tokens",
                code="invalid_value",
            )
        if self.top_logprobs is not None and not self.logprobs:
            message = "top_logprobs is only allowed where logprobs is true."
            raise Refusal(message, param="top_logprobs", code="invalid_value")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return Request(
            request_id=request_id,
            model=self.model,
            sampling=self.sampling(limits.pop() if limits else None, logprobs),
            cache_salt=self.cache_salt,
            priority=self.priority or 0,
            timeout_s=self.timeout,
            **self.chat_words(),
            **self.tool_words(),
            guide=self.guide(self.response_format),
        )


assert _MAX_KWARGS_DEPTH < MAX_DEPTH
