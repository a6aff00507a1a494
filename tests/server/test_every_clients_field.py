"""Every field that the clients' own types know, with values of every kind: honoured, or refused by
its name; never an error of the server's, never passed over.

Not here: what a field does. Always true: a refusal of a body with one such field names that field.
"""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from ollama import _types as ollama_types
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from server.asking import CHAT, TEXT, ask_all
from server.scripted_generator import Scripted

MESSAGES = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": MESSAGES},
    TEXT: {"model": "tiny", "prompt": "hi"},
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/v1/messages": {"model": "tiny", "max_tokens": 5, "messages": MESSAGES},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": MESSAGES},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "hi", "stream": False},
    "/v1/embeddings": {"model": "tiny", "input": "hi"},
    "/api/embed": {"model": "tiny", "input": "hi"},
    "/api/embeddings": {"model": "tiny", "prompt": "hi"},
}
FIELDS: dict[str, list[str]] = {
    CHAT: sorted(get_type_hints(chat_create_params.CompletionCreateParamsStreaming)),
    TEXT: sorted(get_type_hints(completion_create_params.CompletionCreateParamsStreaming)),
    "/v1/responses": sorted(get_type_hints(response_create_params.ResponseCreateParamsStreaming)),
    "/v1/messages": sorted(get_type_hints(message_create_params.MessageCreateParamsStreaming)),
    "/v1/messages/count_tokens": sorted(
        get_type_hints(message_count_tokens_params.MessageCountTokensParams)
    ),
    "/api/chat": sorted(ollama_types.ChatRequest.model_fields),
    "/api/generate": sorted(ollama_types.GenerateRequest.model_fields),
    "/v1/embeddings": sorted(get_type_hints(embedding_create_params.EmbeddingCreateParams)),
    "/api/embed": sorted(ollama_types.EmbedRequest.model_fields),
    "/api/embeddings": sorted(ollama_types.EmbeddingsRequest.model_fields),
}
OPTIONS = sorted(ollama_types.Options.model_fields)
VALUES: list[Any] = [
    True, 0, -1, 10**9, 0.5, 1e300, "", "x", [], ["x"], [{"type": "x"}], {}, {"x": 1},
    {"type": "enabled"}, [[1, 2]],
]  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_a_field_is_honoured_or_refused_by_its_name(path: str) -> None:
    bodies = [(field, {**BODIES[path], field: value}) for field in FIELDS[path] for value in VALUES]
    _check(path, bodies)


@pytest.mark.parametrize("path", ["/api/chat", "/api/embed"])
def test_an_option_of_ollama_is_honoured_or_refused_by_its_name(path: str) -> None:
    bodies = [
        ("options", {**BODIES[path], "options": {option: value}})
        for option in OPTIONS
        for value in VALUES
    ]
    refusals = _check(path, bodies)
    named = {body["options"].popitem()[0] for body, param in refusals if param == "options"}
    assert named == set()


# A value that is right by itself, of what only goes with another field.
TOGETHER = {
    "top_logprobs": "logprobs",
    "max_completion_tokens": "max_tokens",
    "best_of": "n",
    "tool_choice": "tools",
    "prompt": "suffix",
}


def _check(path: str, bodies: list[tuple[str, dict[str, Any]]]) -> list[tuple[Any, str]]:
    requests = [("POST", path, {"json": body}) for _, body in bodies]
    refusals = []
    for (field, body), response in zip(
        bodies, ask_all(requests, generator=Scripted()), strict=True
    ):
        value = json.loads(response.content) if response.status_code >= 400 else {}
        where = json.dumps(body)[:300], response.status_code, value
        if response.status_code == 200:
            continue
        assert response.status_code in {400, 404}, where
        error = value["error"] if isinstance(value["error"], dict) else value
        param = error["param"] or ""
        named = {field, TOGETHER.get(field, field)}
        assert param.split(".")[0].split("[")[0] in named, where
        refusals.append((body, param))
    assert refusals
    return refusals
