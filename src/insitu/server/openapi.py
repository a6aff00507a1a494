"""The OpenAPI document, generated from the models that check requests.

Not here: which operations there are (``operations``). Always true: names and limits in it are the
served model's.
"""

from __future__ import annotations

import re
from copy import deepcopy
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import models_json_schema

from insitu.server.operations import OPERATIONS, TRANSLATIONS
from insitu.server.schema import LIMIT
from insitu.server.schema_chat import ChatCompletionRequest
from insitu.server.shape import version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from insitu.server.operations import Operation
    from insitu.types import ModelCard

_REF = "#/components/schemas/{model}"
_REASONS = {
    400: "The request is refused; `param` names the field.",
    401: "A valid API key is needed.",
    403: "This Host or Origin is not answered.",
    404: "No such model or path.",
    409: "It is not in a state for that.",
    408: "The request did not arrive in time.",
    413: "The body is too long.",
    415: "The content type is not application/json.",
    429: "Too much at once; try again later.",
    431: "The headers are too long.",
    500: "The request failed inside.",
    503: "Not serving now.",
    504: "The request took longer than it may.",
}
_EVERYWHERE = (400, 403, 431, 500, 503)
_OF_BODIES = (404, 408, 413, 415, 429)


def document(card: ModelCard, *, has_keys: bool) -> dict[str, Any]:
    """The whole document; names and limits in it are the served model's."""
    names = tuple(dict.fromkeys((card.name, *card.aliases, "default")))
    sizes = card.vocab_size, card.max_model_len, card.embedding_size
    return _document(names, sizes, has_keys)


@cache
def _document(
    names: tuple[str, ...], sizes: tuple[int, int, int], has_keys: bool
) -> dict[str, Any]:
    vocab_size, max_model_len, embedding_size = sizes
    # A prompt and an answer have a token each at least.
    limits: dict[str, dict[str, Any]] = {
        "model": {"enum": list(names)},
        "token_id": {"maximum": vocab_size - 1},
        "new_tokens": {"maximum": max_model_len - 1},
        "prompt": {"maxItems": max_model_len - 1},
        "input": {"maxItems": max_model_len},
        "dimensions": {"maximum": embedding_size},
    }
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        of_path = paths.setdefault(operation.path, {})
        of_path[operation.method] = _operation(operation, has_keys=has_keys)
    components: dict[str, Any] = {"schemas": _schemas()}
    _set_limits(components, limits)
    if has_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "insitu", "version": version()},
        "paths": paths,
        "components": components,
    }


def _schemas() -> dict[str, Any]:
    wanted: list[tuple[type[BaseModel], Any]] = []
    for operation in OPERATIONS:
        wanted.append((operation.error, "validation"))
        wanted += [(body, "validation") for body in operation.bodies]
        for answer in (operation.answer, operation.chunk):
            if answer is not None:
                wanted.append((answer, "validation"))
    _, definitions = models_json_schema(list(dict.fromkeys(wanted)), ref_template=_REF)
    schemas = definitions["$defs"]
    assert isinstance(schemas, dict)
    of_chat = schemas[ChatCompletionRequest.__name__]["properties"]
    for translation in TRANSLATIONS:
        properties = schemas[translation.model.__name__]["properties"]
        for name in sorted(translation.extensions):
            properties[name] = deepcopy(of_chat[name])
    return schemas


def _set_limits(node: Any, limits: Mapping[str, dict[str, Any]]) -> None:
    """Put the model's limits where a schema marks that they belong."""
    if isinstance(node, dict):
        if (mark := node.pop(LIMIT, None)) is not None:
            node.update(limits[mark])
        for below in node.values():
            _set_limits(below, limits)
    elif isinstance(node, list):
        for below in node:
            _set_limits(below, limits)


def _operation(operation: Operation, *, has_keys: bool) -> dict[str, Any]:
    statuses = {*_EVERYWHERE, *operation.statuses}
    if operation.bodies or operation.form:
        statuses |= set(_OF_BODIES)
    if operation.chunk is not None:
        statuses.add(504)
    if "{" in operation.path:
        statuses.add(404)
    if has_keys and not operation.is_open:
        statuses.add(401)
    error = {"application/json": {"schema": _ref(operation.error)}}
    responses: dict[str, Any] = {
        str(status): {"description": _REASONS[status], "content": error}
        for status in sorted(statuses)
    }
    responses["200"] = {"description": "The answer.", "content": _content(operation)}
    wanted: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "responses": responses,
    }
    if operation.bodies:
        body = _one_of([_ref(model) for model in operation.bodies])
        wanted["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": body}},
        }
    if operation.form:
        content = {"multipart/form-data": {"schema": operation.form}}
        wanted["requestBody"] = {"required": True, "content": content}
    if parameters := _parameters(operation):
        wanted["parameters"] = parameters
    if has_keys and not operation.is_open:
        wanted["security"] = [{"key": []}]
    return wanted


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    """Names in the path, and fields of the query."""
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string"},
            **({"example": "default"} if name == "model_id" else {}),
        }
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    in_query = [{"name": n, "in": "query", "schema": one} for n, one in operation.query.items()]
    return [*in_path, *in_query]


def _content(operation: Operation) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if operation.media_type == "application/json":
        schema = _ref(operation.answer) if operation.answer else {"type": "object"}
    content = {operation.media_type: {"schema": schema}}
    if operation.chunk is not None:
        names = f"{operation.chunk.__name__} or an {operation.error.__name__}"
        events = f"Events or lines, each a {names}."
        content[operation.stream_type] = {"schema": {"description": events}}
    return content


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REF.format(model=model.__name__)}


def _one_of(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
