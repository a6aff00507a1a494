"""Parse a file's JSON object: no duplicate names, no NaN, no other encoding than UTF-8; counted
before anything is made of it.

Not here: requests (``server`` parses those) or what keys mean.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from insitu.weights.errors import ModelFileError, shown

if TYPE_CHECKING:
    from pathlib import Path


# Several times what the largest vocabulary has. A small text can become large objects.
MAX_CONTAINERS = 2 << 20
MAX_VALUES = 6 << 20


class _BadJSONError(ValueError):
    pass


def parse_object(path: Path, where: str, raw: bytes) -> dict[str, Any]:
    """The object that ``raw`` is; a fault names file and place."""
    if raw.count(b"[") + raw.count(b"{") > MAX_CONTAINERS or raw.count(b",") > MAX_VALUES:
        message = f"holds more than {MAX_CONTAINERS} objects and lists, or {MAX_VALUES} values"
        raise ModelFileError(path, where, message)
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
    except UnicodeDecodeError as error:
        raise ModelFileError(path, where, "is not valid UTF-8") from error
    except RecursionError as error:
        raise ModelFileError(path, where, "is nested too deeply") from error
    except ValueError as error:
        raise ModelFileError(path, where, f"is not JSON: {shown(str(error), 200)[1:-1]}") from error
    if not isinstance(value, dict):
        raise ModelFileError(path, where, "is not a JSON object")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _BadJSONError(f"{shown(name)} is there twice")
            seen.add(name)
    return values


def _refuse_constant(name: str) -> NoReturn:
    raise _BadJSONError(f"{name} is not a number")
