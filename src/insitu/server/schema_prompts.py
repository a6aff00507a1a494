"""Prompts of a text completion: a text, token ids, or a list of either.

Always true: a list of ids is checked element by element for being ids, so neither ``true`` nor
``1.0`` passes for one.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.server.limits import MAX_PROMPTS
from insitu.server.schema import LIMIT, MAX_ID

Prompt = str | tuple[int, ...]


def prompts_of(most: int, limit: str) -> tuple[Any, Any]:
    """Marks of a field that holds up to ``most`` prompts, of as many ids as ``limit`` says."""
    ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID, LIMIT: "token_id"},
        "minItems": 1,
        LIMIT: limit,
    }
    several = {"type": "array", "minItems": 1, "maxItems": most}
    schema = {
        "description": "Text, or token ids, or a list of several of one kind.",
        "anyOf": [
            {"type": "string"},
            {**several, "items": {"type": "string"}},
            ids,
            {**several, "items": ids},
        ],
    }
    return PlainValidator(partial(parse_prompts, most)), WithJsonSchema(schema)


def parse_prompts(most: int, value: Any) -> tuple[Prompt, ...]:
    """The prompts out of OpenAI's four forms."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str | list):
        return (_prompt(value),)
    if len(value) > most:
        raise PydanticCustomError("prompts", "up to {most} a request", {"most": most})
    if any(type(one) is not type(value[0]) for one in value):
        raise PydanticCustomError("prompts", "all must be texts, or all lists of token ids")
    return tuple(_prompt(one) for one in value)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("prompt", "must be a string or a list of token ids")
    if not value:
        raise PydanticCustomError("prompt", "must not be an empty list")
    for index, item in enumerate(value):
        if type(item) is not int or not 0 <= item <= MAX_ID:
            place = {"index": index}
            raise PydanticCustomError("prompt", "element {index} is not a token id", place)
    return tuple(value)


Prompts = Annotated[tuple[Prompt, ...], *prompts_of(MAX_PROMPTS, "prompt")]
