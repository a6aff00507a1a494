"""Prompts of a text completion: a text, token ids, or a list of either.

Always true: a list of ids is checked element by element for being ids, so neither ``true`` nor
``1.0`` passes for one.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.server.limits import MAX_PROMPTS
from insitu.server.schema import LIMIT, MAX_ID

_IDS = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID, LIMIT: "token_id"},
    "minItems": 1,
    LIMIT: "prompt",
}
_SEVERAL = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS}
_SCHEMA = {
    "description": "Text, or token ids, or a list of several of one kind.",
    "anyOf": [
        {"type": "string"},
        {**_SEVERAL, "items": {"type": "string"}},
        _IDS,
        {**_SEVERAL, "items": _IDS},
    ],
}
Prompt = str | tuple[int, ...]


def parse_prompts(value: Any) -> tuple[Prompt, ...]:
    """The prompts out of OpenAI's four forms."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str | list):
        return (_prompt(value),)
    if len(value) > MAX_PROMPTS:
        most = {"most": MAX_PROMPTS}
        raise PydanticCustomError("prompts", "up to {most} prompts a request", most)
    if any(type(one) is not type(value[0]) for one in value):
        raise PydanticCustomError("prompts", "all prompts must be texts, or all token ids")
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


Prompts = Annotated[tuple[Prompt, ...], PlainValidator(parse_prompts), WithJsonSchema(_SCHEMA)]
