"""The bodies of POST /v1/messages and /v1/messages/count_tokens, with every field of that API.

Not here: what the fields become (``to_chat``). Always true: ``cache_control`` is accepted
everywhere, because prompts that begin alike are shared without being asked.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from insitu.sampling_params import SamplingParams
from insitu.server.limits import MAX_TOOLS
from insitu.server.schema import MAX_ID, Neutral, Wire
from insitu.server.schema_sampling import ModelName, NewTokens, Nothing, StopString
from insitu.server.schema_tools import FunctionName


class CacheControl(Wire):
    """A wish that a prompt be kept up to here, which it is anyway."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(Wire):
    """A piece of text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


class ThinkingBlock(Wire):
    """What an earlier answer thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Wire):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    cache_control: CacheControl | None = None


Texts = Annotated[list[TextBlock], Field(fail_fast=True)]


class ToolResultBlock(Wire):
    """What a tool answered."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Texts | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class UserMessage(Wire):
    """What a person said, and what tools answered."""

    role: Literal["user"]
    content: str | Annotated[list[UserBlock], Field(min_length=1, fail_fast=True)]


class AssistantMessage(Wire):
    """What the model said."""

    role: Literal["assistant"]
    content: str | Annotated[list[AssistantBlock], Field(fail_fast=True)]


AnyMessage = Annotated[UserMessage | AssistantMessage, Field(discriminator="role")]


class ThinkingOn(Wire):
    """So many tokens of thinking, at most."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_ID)]
    display: None = None


class ThinkingLeft(Wire):
    """No thinking, or as much as the model likes."""

    type: Literal["disabled", "adaptive"]
    display: None = None


Thinking = Annotated[ThinkingOn | ThinkingLeft, Field(discriminator="type")]


class CustomTool(Wire):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: FunctionName
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(Wire):
    """Whether tools may, must or must not be called."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedTool(Wire):
    """The tool that must be called."""

    type: Literal["tool"]
    name: FunctionName
    disable_parallel_tool_use: bool | None = None


class JsonFormat(Wire):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Wire):
    """What form the answer has, and how much thinking comes before it."""

    effort: Literal["low", "medium", "high"] | None = None
    format: JsonFormat | None = None


class Metadata(Wire):
    """Who asks, in the client's own words."""

    user_id: str | None = None


class CountTokensRequest(Wire):
    """A prompt whose tokens are counted."""

    model: ModelName
    messages: Annotated[list[AnyMessage], Field(min_length=1, fail_fast=True)]
    system: str | Texts | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[ToolChoice | NamedTool, Field(discriminator="type")] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: Annotated[Literal["standard"] | None, Neutral('"standard"')] = None
    user_profile_id: Nothing = None
    workspace_id: Nothing = None
    context_management: Nothing = None
    mcp_servers: Nothing = None


class MessagesRequest(CountTokensRequest):
    """A conversation to be continued by one message."""

    max_tokens: NewTokens
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_ID)] | None = None
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=SamplingParams.MAX_STOP, fail_fast=True)]
        | None
    ) = None
    stream: bool | None = None
    metadata: Metadata | None = None
    service_tier: Annotated[
        Literal["auto", "standard_only"] | None, Neutral('"auto" or "standard_only"')
    ] = None
    container: Nothing = None
    diagnostics: Nothing = None
    inference_geo: Nothing = None
