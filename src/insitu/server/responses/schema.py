"""The body of POST /v1/responses: input items and every field OpenAI's schema knows.

Not here: what the fields become (``to_chat``). Always true: what would need a server that keeps
answers (``store``, ``previous_response_id``, ``conversation``, ``background``) is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Discriminator, Field, Tag

from insitu.sampling_params import SamplingParams
from insitu.server.limits import MAX_TOOLS
from insitu.server.schema import Neutral, Wire
from insitu.server.schema_sampling import ModelName, NewTokens, Nothing, OnlyFalse
from insitu.server.schema_tools import Effort, FunctionName


class InputText(Wire):
    """A piece of a message's text."""

    type: Literal["input_text"]
    text: str


class OutputText(Wire):
    """A piece of what an earlier answer said; its notes are passed over, as OpenAI does."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    logprobs: list[dict[str, Any]] | None = None


Part = Annotated[InputText | OutputText, Field(discriminator="type")]
Parts = Annotated[list[Part], Field(fail_fast=True)]
Status = Literal["in_progress", "completed", "incomplete"]


class InputMessage(Wire):
    """What somebody said."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Wire):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None


class FunctionCallOutput(Wire):
    """What a tool answered."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Annotated[list[InputText], Field(fail_fast=True)]
    id: str | None = None
    name: str | None = None
    status: Status | None = None


class ReasoningText(Wire):
    """A piece of an earlier answer's reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Wire):
    """An earlier answer's reasoning."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: Annotated[list[Any], Field(max_length=0)] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: None = None
    status: Status | None = None


_TYPES = ("message", "function_call", "function_call_output", "reasoning")


def _type_of(item: Any) -> str | None:
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "message" if kind is None else kind if isinstance(kind, str) else ""


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _type_of,
        custom_error_type="item_type",
        custom_error_message=f"must be one of {', '.join(map(repr, _TYPES))}",
    ),
]


class FunctionTool(Wire):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class NamedTool(Wire):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class PlainFormat(Wire):
    """Text, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaFormat(Wire):
    """JSON that a schema describes."""

    type: Literal["json_schema"]
    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Wire):
    """What the answer's text must be."""

    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Wire):
    """How much thinking comes before the answer."""

    effort: Effort | None = None
    summary: None = None
    generate_summary: None = None


class StreamOptions(Wire):
    """What a stream carries beside its events."""

    include_obfuscation: OnlyFalse | None = Field(None, description="Only false.")


LOGPROBS = "message.output_text.logprobs"


_WITH_ALTERNATIVES: dict[str, Any] = {
    "properties": {"top_logprobs": {"type": "integer", "minimum": 1}},
    "required": ["top_logprobs"],
}
_NEEDS_INCLUDE: dict[str, Any] = {
    "if": _WITH_ALTERNATIVES,
    "then": {"properties": {"include": {"type": "array", "minItems": 1}}, "required": ["include"]},
}


class ResponsesRequest(Wire):
    """What is to be answered."""

    model_config = ConfigDict(json_schema_extra={"allOf": [_NEEDS_INCLUDE]})

    model: ModelName = "default"
    input: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Item], Field(min_length=1, fail_fast=True)]
    )
    instructions: str | None = None
    max_output_tokens: NewTokens | None = Field(
        None, description="To the end of the context when absent."
    )
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS)] | None = Field(
        None, description="More than 0 only where include asks for log-probabilities."
    )
    include: Annotated[
        Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=1)] | None,
        Neutral(f'["{LOGPROBS}"] or an empty list'),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Annotated[Literal["in_memory"] | None, Neutral('"in_memory"')] = None
    service_tier: Annotated[Literal["auto", "default"] | None, Neutral('"auto" or "default"')] = (
        None
    )
    truncation: Annotated[Literal["disabled"] | None, Neutral('"disabled"')] = None
    store: Annotated[OnlyFalse | None, Neutral("false")] = None
    background: Annotated[OnlyFalse | None, Neutral("false")] = None
    access_programs: Nothing = None
    background_options: Nothing = None
    image: Nothing = None
    previous_response_id: Nothing = None
    conversation: Nothing = None
    context_management: Nothing = None
    max_tool_calls: Nothing = None
    moderation: Nothing = None
    prompt: Nothing = None
    prompt_cache_options: Nothing = None
