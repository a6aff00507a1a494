"""Parse a file's JSON object: no duplicate names, no NaN, no other encoding than UTF-8.

Not here: requests (``server`` parses those) or what keys mean.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

from insitu.weights.errors import ModelFileError, shown

if TYPE_CHECKING:
    from pathlib import Path


class _BadJSONError(ValueError):
    pass


def parse_object(path: Path, where: str, raw: bytes) -> dict[str, Any]:
    """The object that ``raw`` is; a fault names file and place."""
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
