"""Answers of /v1/responses as models, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from insitu.server.schema_answers import Answer, ContentLogprob


class OutputTextPart(Answer):
    """Text of an answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ContentLogprob]


class ReasoningPart(Answer):
    """Text of the thinking before an answer."""

    type: Literal["reasoning_text"]
    text: str


Status = Literal["in_progress", "completed", "incomplete"]


class _Item(Answer):
    id: str
    status: Status


class MessageItem(_Item):
    """What the model said."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputTextPart]


class ReasoningItemAnswer(_Item):
    """What the model thought."""

    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ReasoningPart]


class CallItem(_Item):
    """What the model wants called."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputDetails(Answer):
    """Where input tokens came from."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Answer):
    """What output tokens were."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """Tokens counted."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseError(Answer):
    """Why there is no more."""

    code: str
    message: str


class ResponseAnswer(Answer):
    """A response, whole or in the making."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    model: str
    system_fingerprint: str
    seed: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: bool
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    output: list[MessageItem | ReasoningItemAnswer | CallItem]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    warnings: list[str] | None = None


class ResponseEvent(Answer):
    """One event of a stream: its type's own fields beside these."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str
    sequence_number: int
