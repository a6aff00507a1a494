"""Every operation there is, for the OpenAPI document: a path, its bodies and its answers.

Not here: the document (``openapi``). Always true: a path here is a route of the app and the other
way round (a test walks both).
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
from insitu.server.batches import answers as batches
from insitu.server.batches.schema import CreateBatch
from insitu.server.ollama import answers as ollama
from insitu.server.ollama import schema as ollama_schema
from insitu.server.ollama import schema_embed
from insitu.server.ollama.to_chat import CHAT, GENERATE
from insitu.server.responses.answers import ResponseAnswer, ResponseEvent
from insitu.server.responses.schema import ResponsesRequest
from insitu.server.responses.to_chat import RESPONSES
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.schema_completions import CompletionRequest
from insitu.server.schema_embeddings import EmbeddingsRequest
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
    verb: str | None = None  # of its path; where it says nothing: post with a body, else get
    form: dict[str, Any] | None = None  # the schema of a multipart/form-data body
    query: dict[str, Any] = field(default_factory=dict)  # schemas by name
    statuses: tuple[int, ...] = ()  # beside those that its form implies

    @property
    def method(self) -> str:
        """The method, in small letters."""
        return self.verb or ("post" if self.bodies or self.form else "get")


_LINES = "application/x-ndjson"


def _ollama(
    path: str,
    name: str,
    summary: str,
    answer: type[BaseModel],
    body: type[BaseModel] | None = None,
) -> Operation:
    bodies, error = () if body is None else (body,), ollama.OllamaError
    statuses = (504,) if name.startswith("ollamaEmbed") else ()
    return Operation(path, name, summary, bodies, answer, error=error, statuses=statuses)


_FORM = {
    "type": "object",
    "required": ["purpose", "file"],
    "additionalProperties": False,
    "properties": {
        "purpose": {"type": "string", "enum": ["batch"]},
        "file": {"type": "string", "format": "binary"},
    },
}


def _page(longest: int) -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": longest}
    return {"limit": limit, "after": {"type": "string"}}


# Every one is a 404 where they are off.
BATCHES = (
    Operation(
        "/v1/files",
        "createFile",
        "Keep a file of a batch's lines.",
        answer=batches.FileAnswer,
        form=_FORM,
    ),
    Operation(
        "/v1/files",
        "listFiles",
        "The caller's files.",
        answer=batches.FileList,
        query={
            **_page(10_000),
            "order": {"type": "string", "enum": ["asc", "desc"]},
            "purpose": {"type": "string"},
        },
        statuses=(404,),
    ),
    Operation("/v1/files/{file_id}", "retrieveFile", "One file.", answer=batches.FileAnswer),
    Operation(
        "/v1/files/{file_id}",
        "deleteFile",
        "Forget a file.",
        answer=batches.FileDeleted,
        verb="delete",
        statuses=(409,),
    ),
    Operation(
        "/v1/files/{file_id}/content",
        "downloadFile",
        "A file's bytes.",
        media_type="application/jsonl",
    ),
    Operation(
        "/v1/batches",
        "createBatch",
        "Run a file's lines, behind all other requests.",
        (CreateBatch,),
        batches.BatchAnswer,
    ),
    Operation(
        "/v1/batches",
        "listBatches",
        "The caller's batches.",
        answer=batches.BatchList,
        query=_page(100),
        statuses=(404,),
    ),
    Operation("/v1/batches/{batch_id}", "retrieveBatch", "One batch.", answer=batches.BatchAnswer),
    Operation(
        "/v1/batches/{batch_id}/cancel",
        "cancelBatch",
        "End a batch; what is done stays.",
        answer=batches.BatchAnswer,
        verb="post",
        statuses=(409,),
    ),
)

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
        "/v1/embeddings",
        "createEmbedding",
        "Vectors of texts, or of token ids.",
        (EmbeddingsRequest,),
        answers.EmbeddingList,
        statuses=(504,),
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
    _ollama(
        "/api/embed",
        "ollamaEmbed",
        "Vectors of texts.",
        ollama.Embedded,
        schema_embed.EmbedRequest,
    ),
    _ollama(
        "/api/embeddings",
        "ollamaEmbeddings",
        "A text's vector.",
        ollama.EmbeddedOne,
        schema_embed.EmbedOneRequest,
    ),
    _ollama("/api/tags", "ollamaTags", "What is served.", ollama.Tags),
    _ollama("/api/ps", "ollamaRunning", "What is loaded.", ollama.Tags),
    _ollama("/api/version", "ollamaVersion", "Which insitu this is.", ollama.Version),
    *BATCHES,
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
