"""The OpenAPI document against the app (schemathesis), and docs/api.md against OpenAI's schema."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from server.scripted_generator import Scripted

from insitu.server.app import create_app
from insitu.server.openapi import OPERATIONS
from insitu.server.options import ServerOptions
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.schema_completions import CompletionRequest

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
HEADERS = {"Host": "127.0.0.1"}
# schemathesis leaves the path of the document itself out.
PATHS = [one.path for one in OPERATIONS if one.path != "/openapi.json"]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_documented(path: str, mode: GenerationMode) -> None:
    app = create_app(Scripted(), ServerOptions())
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=HEADERS)
    operations: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    operation = next(one for one in operations if one.path == path)
    if mode is GenerationMode.NEGATIVE and not operation.body:
        pytest.skip("nothing to be wrong about")
    checks = CHECKS + ([negative_data_rejection] if mode is GenerationMode.NEGATIVE else [])

    @settings(
        max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        case.call_and_validate(headers=HEADERS, checks=checks)

    check()


def table_of(section: str) -> dict[str, str]:
    """Fields of a section's first table, with what becomes of them."""
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    body = text.split(f"## POST {section}\n")[1].split("Beyond OpenAI")[0]
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
    ],
)
def test_the_table_lists_every_field_of_openais_schema(
    section: str, params: Any, model: Any
) -> None:
    table = table_of(section)
    assert set(table) == set(params.__annotations__)
    assert set(table) <= set(model.model_fields)
    assert all(
        what.split()[0].strip(":;,") in {"honoured", "accepted", "refused"}
        for what in table.values()
    )
