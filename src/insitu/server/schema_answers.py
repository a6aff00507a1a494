"""Answers as models, for the OpenAPI document and the tests that hold answers to it.

Not here: building answers; endpoints write plain objects, which is several times as fast. Always
true: a test checks real answers against these, so they cannot drift.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """An object of an answer."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)


class ErrorDetail(Answer):
    """What went wrong, and where."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer):
    """A failure."""

    error: ErrorDetail


class PromptTokensDetails(Answer):
    """Where prompt tokens came from."""

    cached_tokens: int


class CompletionTokensDetails(Answer):
    """What completion tokens were."""

    reasoning_tokens: int


class UsageAnswer(Answer):
    """Tokens counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class EmbeddingUsage(Answer):
    """Tokens counted, where nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingItem(Answer):
    """One input's vector: numbers, or in base64 as little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    """A vector for each input."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
    warnings: list[str] | None = None


class TopLogprob(Answer):
    """A token and its log-probability."""

    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    """A sampled token with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """Log-probabilities of a chat's answer."""

    content: list[ContentLogprob]
    refusal: None


class FunctionCallAnswer(Answer):
    """A tool's name and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCallAnswer(Answer):
    """A call."""

    id: str
    type: Literal["function"]
    function: FunctionCallAnswer


class ChatAnswerMessage(Answer):
    """What the model said; content is null where it only called."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]
ReasoningEnd = Literal["natural", "budget"]


class ChatChoice(Answer):
    """One answer."""

    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    token_ids: list[int] | None = None
    reasoning_finish: ReasoningEnd | None = None


class _Head(Answer):
    id: str
    created: int
    model: str
    system_fingerprint: str


class _Whole(_Head):
    usage: UsageAnswer
    seed: int
    warnings: list[str] | None = None


class ChatCompletion(_Whole):
    """A chat's whole answer."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class FunctionPiece(Answer):
    """What a call's function gained: its name once, then pieces of its arguments."""

    arguments: str
    name: str | None = None


class ToolCallPieceAnswer(Answer):
    """What call ``index`` gained; the first piece has its id, type and name."""

    index: int
    function: FunctionPiece
    id: str | None = None
    type: Literal["function"] | None = None


class ChatDelta(Answer):
    """What a chunk adds."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallPieceAnswer] | None = None


class ChatChunkChoice(Answer):
    """What a choice gained."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    token_ids: list[int] | None = None
    reasoning_finish: ReasoningEnd | None = None


class _Chunk(_Head):
    usage: UsageAnswer | None = None
    seed: int | None = None
    warnings: list[str] | None = None


class ChatCompletionChunk(_Chunk):
    """One event of a chat's stream."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]


class TextLogprobs(Answer):
    """Log-probabilities of a text completion."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]
    token_ids: list[int] | None = None
    top_token_ids: list[list[int]] | None = None
    top_token_logprobs: list[list[float]] | None = None


class TextChunkChoice(Answer):
    """What a choice gained."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None
    token_ids: list[int] | None = None
    seed: int | None = None


class TextChoice(TextChunkChoice):
    """One continuation."""

    finish_reason: Finish


class Completion(_Whole):
    """A whole text completion."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class CompletionChunk(_Chunk):
    """One event of a completion's stream."""

    object: Literal["text_completion"]
    choices: list[TextChunkChoice]


class TokenizeAnswer(Answer):
    """Ids of a prompt."""

    tokens: list[int]
    count: int
    prompt: str | None = None
    warnings: list[str] | None = None


class DetokenizeAnswer(Answer):
    """Text of ids."""

    prompt: str
    warnings: list[str] | None = None


class ModelAnswer(Answer):
    """What is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    architecture: str
    digest: str
    size_bytes: int
    max_model_len: int
    vocab_size: int
    embedding_size: int
    numeric_settings: dict[str, str]
    sampling_defaults: dict[str, float]
    has_chat_template: bool
    capabilities: dict[str, bool]
    limits: dict[str, int]


class ModelList(Answer):
    """All that is served."""

    object: Literal["list"]
    data: list[ModelAnswer]


class Status(Answer):
    """That all is well."""

    status: Literal["ready", "live"]
