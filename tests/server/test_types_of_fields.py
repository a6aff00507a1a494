"""Every field of every body, given every JSON type that its schema does not let in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from server.asking import CHAT, TEXT, ask_all, chat_body, text_body

from insitu.server.anthropic.schema import CountTokensRequest, MessagesRequest
from insitu.server.ollama.schema import ChatRequest, GenerateRequest
from insitu.server.ollama.schema_embed import EmbedOneRequest, EmbedRequest
from insitu.server.responses.schema import ResponsesRequest
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.schema_completions import CompletionRequest
from insitu.server.schema_embeddings import EmbeddingsRequest
from insitu.server.schema_tokens import DetokenizeRequest, TokenizePromptRequest

if TYPE_CHECKING:
    from insitu.server.schema import Wire

WIRES: dict[str, tuple[type[Wire], dict[str, Any]]] = {
    CHAT: (ChatCompletionRequest, chat_body()),
    TEXT: (CompletionRequest, text_body()),
    "/v1/tokenize": (TokenizePromptRequest, text_body()),
    "/v1/detokenize": (DetokenizeRequest, {"model": "tiny", "tokens": [1]}),
    "/v1/responses": (ResponsesRequest, {"input": "hi"}),
    "/v1/messages": (MessagesRequest, chat_body(max_tokens=5)),
    "/v1/messages/count_tokens": (CountTokensRequest, chat_body()),
    "/api/chat": (ChatRequest, chat_body()),
    "/api/generate": (GenerateRequest, text_body()),
    "/v1/embeddings": (EmbeddingsRequest, {"model": "tiny", "input": "hi"}),
    "/api/embed": (EmbedRequest, {"model": "tiny", "input": "hi"}),
    "/api/embeddings": (EmbedOneRequest, {"model": "tiny", "prompt": "hi"}),
}
OF_A_TYPE = {
    "string": "x", "integer": 3, "number": 2.5, "boolean": True, "array": [], "object": {},
}  # fmt: skip


def types_of(schema: dict[str, Any], definitions: dict[str, Any]) -> set[str]:
    """The JSON types that a field's schema lets in."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rsplit("/", 1)[1]]
    inner = schema.get("anyOf", schema.get("oneOf", []))
    found = {kind for one in inner for kind in types_of(one, definitions)}
    return found | ({schema["type"]} if "type" in schema else set())


@pytest.mark.parametrize("path", WIRES)
def test_every_field_refuses_every_other_type(path: str) -> None:
    wire, good = WIRES[path]
    schema = wire.model_json_schema()
    asked, names = [], []
    for field, one in schema["properties"].items():
        allowed = types_of(one, schema.get("$defs", {}))
        assert allowed, field
        allowed |= {"integer"} if "number" in allowed else set()
        for kind, value in OF_A_TYPE.items():
            if kind not in allowed:
                asked.append(("POST", path, {"json": {**good, field: value}}))
                names.append(field)
    assert len(asked) >= 4 * len(schema["properties"])
    *answers, last = ask_all([*asked, ("POST", path, {"json": good})])
    for name, (_, _, how), response in zip(names, asked, answers, strict=True):
        assert response.status_code == 400, how
        answer = response.json()
        param = (answer if isinstance(answer["error"], str) else answer["error"])["param"]
        assert param.split("[")[0].split(".")[0] == name, (param, how)
    assert last.status_code == 200
