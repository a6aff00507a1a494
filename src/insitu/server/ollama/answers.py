"""Answers of /api as models, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Any

from insitu.server.schema_answers import Answer, ContentLogprob


class Called(Answer):
    """A call; ``partial_json`` where its arguments are no whole object."""

    name: str
    arguments: dict[str, Any]
    partial_json: str | None = None


class CallAnswer(Answer):
    """A tool that the model wants called."""

    id: str
    function: Called


class _Line(Answer):
    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    seed: int | None = None
    warnings: list[str] | None = None
    logprobs: list[ContentLogprob] | None = None


class OllamaMessage(Answer):
    """What the model said."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[CallAnswer] | None = None


class ChatLine(_Line):
    """A line of a chat's answer, or the whole of it; the last one counts."""

    message: OllamaMessage


class GenerateLine(_Line):
    """A line of a prompt's answer, or the whole of it; the last one counts."""

    response: str
    thinking: str | None = None
    tool_calls: list[CallAnswer] | None = None


class OllamaModel(Answer):
    """What is served."""

    name: str
    model: str
    size: int
    digest: str
    details: dict[str, Any]
    modified_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class Tags(Answer):
    """All that is served."""

    models: list[OllamaModel]


class Shown(Answer):
    """What there is to know of a model."""

    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class Embedded(Answer):
    """A vector for each text."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warnings: list[str] | None = None


class EmbeddedOne(Answer):
    """A text's vector."""

    embedding: list[float]
    model: str
    warnings: list[str] | None = None


class Version(Answer):
    """Which insitu this is."""

    version: str


class OllamaError(Answer):
    """A failure in this protocol's form."""

    error: str
    param: str | None
    code: str | None
