"""The OpenAPI document against the app (schemathesis), and docs/api.md against OpenAI's schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from anthropic.types import message_create_params
from hypothesis import HealthCheck, given, settings
from jsonschema_rs import Draft202012Validator
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import AcceptedNegativeData
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from server.asking import TEXT, ask, post
from server.scripted_generator import CARD, Scripted

from insitu.server.anthropic.schema import MessagesRequest
from insitu.server.app import create_app
from insitu.server.operations import OPERATIONS
from insitu.server.options import ServerOptions
from insitu.server.responses.schema import ResponsesRequest
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.schema_completions import CompletionRequest

if TYPE_CHECKING:
    from collections.abc import Callable


def no_error_of_the_servers(ctx: Any, response: Any, case: Any) -> None:
    """No 5xx, unless the request itself gave the time that was too short."""
    if response.status_code == 504:
        assert case.body.get("timeout"), case.body
        return
    not_a_server_error(ctx, response, case)


CHECKS = [
    no_error_of_the_servers,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HEADERS = {"Host": "127.0.0.1"}
# schemathesis leaves the path of the document itself out.
PATHS = [(one.method, one.path) for one in OPERATIONS if one.path != "/openapi.json"]

# What no schema can say: sums of lengths, two fields that must agree, what a template thinks.
BEYOND_A_SCHEMA = {"context_length_exceeded", "invalid_json", "conflicting_fields"}


def holds_whole_float(value: Any) -> bool:
    """Whether there is a number such as 5.0, an integer for JSON schema and none here."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(holds_whole_float, value))
    return isinstance(value, float) and value.is_integer()


def valid_is_not_refused(ctx: Any, response: Any, case: Any) -> None:
    """A value that the document allows is not answered 400 for being that value."""
    if response.status_code == 400 and not holds_whole_float(case.body):
        answer = response.json()
        error = answer["error"] if isinstance(answer["error"], dict) else answer
        is_unsupported = error["code"] in {"unsupported_parameter", "unknown_parameter"}
        body = case.body if isinstance(case.body, dict) else case.query or {}
        is_theirs = re.split(r"[.\[]", error["param"] or "")[0] in body
        if "completions" not in case.path and is_unsupported and is_theirs:
            return  # what a protocol can ask for and a chat here does not do
        differ = error["param"] == "max_completion_tokens" and "differ" in error["message"]
        differ |= error["param"] in {"echo", "prompt"} and "together" in error["message"]
        differ |= error["param"] == "best_of" and {"n", "stream"} & set(body) != set()
        differ |= error["param"] == "after" and "id of the list" in error["message"]
        assert differ or error["code"] in BEYOND_A_SCHEMA, (error, body)


def invalid_is_refused(ctx: Any, response: Any, case: Any) -> None:
    """What the document does not allow is refused; what broke one form may be right by another."""
    try:
        negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData:
        document = ask("GET", "/openapi.json").json()
        if not validator(document, case.path).is_valid(case.body):
            raise


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), PATHS)
def test_every_answer_is_as_documented(
    method: str, path: str, mode: GenerationMode, tmp_path: Path
) -> None:
    is_kept = path.startswith(("/v1/files", "/v1/batches"))
    app = create_app(Scripted(), ServerOptions(batch_dir=tmp_path if is_kept else None))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HEADERS)
    operations: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    operation = next(one for one in operations if (one.method, one.path) == (method, path))
    if mode is GenerationMode.NEGATIVE and not operation.body:
        pytest.skip("nothing to be wrong about")
    judge = invalid_is_refused if mode is GenerationMode.NEGATIVE else valid_is_not_refused
    checks = [*CHECKS, judge]

    @settings(
        max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(headers=HEADERS, checks=checks)

    check()


@pytest.mark.parametrize(
    ("path", "body", "highest"),
    [
        ("/v1/detokenize", lambda n: {"tokens": [n]}, CARD.vocab_size - 1),
        (TEXT, lambda n: {"prompt": [n], "max_tokens": 1}, CARD.vocab_size - 1),
        (TEXT, lambda n: {"prompt": "x", "stop_token_ids": [n]}, CARD.vocab_size - 1),
        (TEXT, lambda n: {"prompt": "x", "max_tokens": n}, CARD.max_model_len - 1),
        (TEXT, lambda n: {"prompt": [5] * n, "max_tokens": 1}, CARD.max_model_len - 1),
    ],
)
def test_limits_in_the_document_are_those_of_answers(
    path: str, body: Callable[[int], dict[str, Any]], highest: int
) -> None:
    document = ask("GET", "/openapi.json").json()
    checker = validator(document, path)
    for value in (highest, highest + 1):
        asked = {"model": "default", **body(value)}
        is_valid = checker.is_valid(asked)
        assert is_valid == (value == highest), value
        assert (post(path, asked).status_code == 200) == is_valid


def validator(document: dict[str, Any], path: str) -> Draft202012Validator:
    """What checks a body of a path."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    schema = content["application/json"]["schema"]
    return Draft202012Validator({**schema, "components": document["components"]})


def test_the_document_names_the_models_names() -> None:
    checker = validator(ask("GET", "/openapi.json").json(), "/v1/detokenize")
    for name in (CARD.name, *CARD.aliases):
        assert checker.is_valid({"model": name, "tokens": [1]})
    assert not checker.is_valid({"model": "other", "tokens": [1]})


def table_of(section: str) -> dict[str, str]:
    """Fields of a section's first table, with what becomes of them."""
    page = "api.md" if "completions" in section else "protocols.md"
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    body = text.split(f"## POST {section}\n")[1].split("\n## ")[0].split("Beyond OpenAI")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", body, re.MULTILINE)
    return {name: what for names, what in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize(
    ("section", "params", "model"),
    [
        (
            "/v1/chat/completions",
            chat_create_params.CompletionCreateParamsStreaming,
            ChatCompletionRequest,
        ),
        (
            "/v1/completions",
            completion_create_params.CompletionCreateParamsStreaming,
            CompletionRequest,
        ),
        (
            "/v1/responses",
            response_create_params.ResponseCreateParamsStreaming,
            ResponsesRequest,
        ),
        (
            "/v1/messages",
            message_create_params.MessageCreateParamsStreaming,
            MessagesRequest,
        ),
    ],
)
def test_the_table_lists_every_field_of_the_clients_schema(
    section: str, params: Any, model: Any
) -> None:
    table = table_of(section)
    assert set(table) == set(params.__annotations__)
    assert set(table) <= set(model.model_fields)
    assert all(
        what.split()[0].strip(":;,") in {"honoured", "accepted", "refused"}
        for what in table.values()
    )
