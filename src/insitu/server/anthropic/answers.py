"""Answers of /v1/messages as models, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict

from insitu.server.schema_answers import Answer


class TextAnswer(Answer):
    """Text of an answer."""

    type: Literal["text"]
    text: str


class ThinkingAnswer(Answer):
    """The thinking before an answer; nothing is signed."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseAnswer(Answer):
    """A call; ``partial_json`` where its arguments are no whole object."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    partial_json: str | None = None


class ThinkingTokens(Answer):
    """What output tokens were."""

    thinking_tokens: int


class MessageUsage(Answer):
    """Tokens counted."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class MessageAnswer(Answer):
    """A whole message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextAnswer | ThinkingAnswer | ToolUseAnswer]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    seed: int
    warnings: list[str] | None = None


class MessageEvent(Answer):
    """One event of a stream: its type's own fields beside this one."""

    model_config = ConfigDict(strict=True, extra="allow")

    type: str


class TokenCount(Answer):
    """How long a prompt is."""

    input_tokens: int


class AnthropicErrorDetail(Answer):
    """What went wrong, and where."""

    type: str
    message: str
    param: str | None
    code: str | None


class AnthropicError(Answer):
    """A failure in this protocol's form."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str
