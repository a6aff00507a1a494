"""Every operation there is, for the OpenAPI document: a path, its bodies and its answers.

Not here: the document (``openapi``). Always true: a path here is a route of the app and the other
way round (a test walks both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.server import schema_answers as answers
from insitu.server.anthropic.answers import (
    AnthropicError,
    MessageAnswer,
    MessageEvent,
    TokenCount,
)
from insitu.server.anthropic.schema import CountTokensRequest, MessagesRequest
from insitu.server.anthropic.to_chat import COUNT_TOKENS, MESSAGES
from insitu.server.ollama import answers as ollama
from insitu.server.ollama import schema as ollama_schema
from insitu.server.ollama.to_chat import CHAT, GENERATE
from insitu.server.responses.answers import ResponseAnswer, ResponseEvent
from insitu.server.responses.schema import ResponsesRequest
from insitu.server.responses.to_chat import RESPONSES
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.schema_completions import CompletionRequest
from insitu.server.schema_tokens import (
    DetokenizeRequest,
    TokenizeMessagesRequest,
    TokenizePromptRequest,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from insitu.server.translated import Translation


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    path: str
    name: str
    summary: str
    bodies: tuple[type[BaseModel], ...] = ()
    answer: type[BaseModel] | None = None
    chunk: type[BaseModel] | None = None
    media_type: str = "application/json"
    is_open: bool = False
    error: type[BaseModel] = answers.ErrorAnswer
    stream_type: str = "text/event-stream"


_LINES = "application/x-ndjson"


def _ollama(
    path: str,
    name: str,
    summary: str,
    answer: type[BaseModel] | None,
    body: type[BaseModel] | None = None,
) -> Operation:
    bodies = () if body is None else (body,)
    return Operation(path, name, summary, bodies, answer, error=ollama.OllamaError)


# Bodies that may also hold fields of a chat.
TRANSLATIONS: tuple[Translation[Any], ...] = (
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    CHAT,
    GENERATE,
)

OPERATIONS = (
    Operation("/v1/models", "listModels", "What is served.", answer=answers.ModelList),
    Operation(
        "/v1/models/{model_id}",
        "retrieveModel",
        "One model by any of its names.",
        answer=answers.ModelAnswer,
    ),
    Operation(
        "/v1/chat/completions",
        "createChatCompletion",
        "Answer a chat.",
        (ChatCompletionRequest,),
        answers.ChatCompletion,
        answers.ChatCompletionChunk,
    ),
    Operation(
        "/v1/completions",
        "createCompletion",
        "Continue a text.",
        (CompletionRequest,),
        answers.Completion,
        answers.CompletionChunk,
    ),
    Operation(
        "/v1/responses",
        "createResponse",
        "Answer input items; nothing is kept.",
        (ResponsesRequest,),
        ResponseAnswer,
        ResponseEvent,
    ),
    Operation(
        "/v1/messages",
        "createMessage",
        "Answer a conversation in Anthropic's words.",
        (MessagesRequest,),
        MessageAnswer,
        MessageEvent,
        error=AnthropicError,
    ),
    Operation(
        "/v1/messages/count_tokens",
        "countMessageTokens",
        "How many tokens a conversation's prompt has.",
        (CountTokensRequest,),
        TokenCount,
        error=AnthropicError,
    ),
    Operation(
        "/api/chat",
        "ollamaChat",
        "Answer a conversation in Ollama's words.",
        (ollama_schema.ChatRequest,),
        ollama.ChatLine,
        ollama.ChatLine,
        error=ollama.OllamaError,
        stream_type=_LINES,
    ),
    Operation(
        "/api/generate",
        "ollamaGenerate",
        "Answer a prompt in Ollama's words.",
        (ollama_schema.GenerateRequest,),
        ollama.GenerateLine,
        ollama.GenerateLine,
        error=ollama.OllamaError,
        stream_type=_LINES,
    ),
    _ollama("/api/show", "ollamaShow", "One model.", ollama.Shown, ollama_schema.ShowRequest),
    _ollama("/api/embed", "ollamaEmbed", "Refused.", None, ollama_schema.EmbedRequest),
    _ollama("/api/embeddings", "ollamaEmbeddings", "Refused.", None, ollama_schema.EmbedRequest),
    _ollama("/api/tags", "ollamaTags", "What is served.", ollama.Tags),
    _ollama("/api/ps", "ollamaRunning", "What is loaded.", ollama.Tags),
    _ollama("/api/version", "ollamaVersion", "Which insitu this is.", ollama.Version),
    Operation(
        "/v1/tokenize",
        "tokenize",
        "Ids of a prompt or of messages.",
        (TokenizePromptRequest, TokenizeMessagesRequest),
        answers.TokenizeAnswer,
    ),
    Operation(
        "/v1/detokenize",
        "detokenize",
        "Text of ids.",
        (DetokenizeRequest,),
        answers.DetokenizeAnswer,
    ),
    Operation("/health", "ready", "Ready for work.", answer=answers.Status, is_open=True),
    Operation("/health/ready", "isReady", "Ready for work.", answer=answers.Status, is_open=True),
    Operation("/health/live", "live", "Alive.", answer=answers.Status, is_open=True),
    Operation("/metrics", "metrics", "Prometheus metrics.", media_type="text/plain"),
    Operation("/openapi.json", "openapi", "This document."),
)
