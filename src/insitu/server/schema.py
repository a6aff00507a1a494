"""What every wire model shares, and how its complaints become one refusal that names a field.

Not here: the fields (``schema_chat``, ``schema_completions``, ``schema_tokens``) or reading JSON
(``body``). Always true: nothing is coerced (``"256"`` and ``1.0`` are not integers, ``true`` is not
a number), unknown fields are refused, and null means absent wherever a field may be absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from insitu.refusal import Refusal
from insitu.server.errors import clip
from insitu.server.lenience import STRICT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.server.lenience import Lenience

MAX_ID = 2**31 - 1
# Marks a place in a JSON schema whose limits the served model decides: "model", "token_id", ...
LIMIT = "x-limit"
# The last is ours, of unions whose tag may be absent.
_TAG_FAULTS = {"union_tag_invalid", "union_tag_not_found", "item_type"}


@dataclass(frozen=True, slots=True)
class Neutral:
    """Marks a field that is known and not implemented: only values asking nothing are accepted."""

    values: str


class Wire(BaseModel):
    """A JSON object of a request."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True
    )


WireT = TypeVar("WireT", bound=Wire)


def parse_wire(model: type[WireT], value: dict[str, Any], lenience: Lenience = STRICT) -> WireT:
    """Check a JSON object against its model, or refuse it naming the first field at fault.

    A field that is unknown or not supported is taken out of ``value`` where ``lenience`` allows it.
    """
    while True:
        try:
            return model.model_validate(value)
        except ValidationError as error:
            refusal, path = _refusal(model, value, error)
        if not path:
            raise refusal
        lenience.leave_out(refusal)
        _take_out(value, path)


def _refusal(
    model: type[Wire], value: Mapping[str, Any], error: ValidationError
) -> tuple[Refusal, tuple[str | int, ...]]:
    """A refusal and, where the field asks for what we do not know or do, its path."""
    faults = error.errors(include_url=False, include_input=False)
    # Where branches of a union complain, the one that got furthest in is what was meant.
    fault = max(faults, key=lambda one: len(_path(value, one)))
    path = _path(value, fault)
    if fault["type"] == "extra_forbidden":
        param = _spell(path)
        message = f"Unknown field: {clip(param)}."
        return Refusal(message, param=param, code="unknown_parameter"), path
    neutral = _neutral(model, path)
    if neutral is not None:
        param = str(path[0])
        message = f"{param} is not supported here: only {neutral.values} is accepted."
        return Refusal(message, param=param, code="unsupported_parameter"), path[:1]
    param = _spell(path)
    same_place = [one for one in faults if _path(value, one) == path]
    reasons = dict.fromkeys(_reason(one) for one in same_place)
    message = f"{clip(param) or 'The body'}: {clip('; or '.join(reasons), 250)}."
    code = "missing_required_parameter" if fault["type"] == "missing" else "invalid_value"
    return Refusal(message, param=param or None, code=code), ()


def _take_out(value: Any, path: Sequence[str | int]) -> None:
    *above, last = path
    for place in above:
        value = value[place]
    del value[last]


def _reason(fault: Any) -> str:
    """What a fault says, without repeating the input."""
    if "expected_tags" in fault.get("ctx", {}):
        return f"must be one of {fault['ctx']['expected_tags']}"
    return str(fault["msg"])


def _path(value: Any, fault: Any) -> tuple[str | int, ...]:
    """The keys and indices of a fault that lead into the value, without names of union branches."""
    path: list[str | int] = []
    places: Sequence[str | int] = fault["loc"]
    for depth, place in enumerate(places):
        is_last = depth == len(places) - 1
        if _has_place(value, place):
            path.append(place)
            value = value[place]
        elif is_last and fault["type"] == "missing":
            path.append(place)
    if fault["type"] in _TAG_FAULTS:
        path.append(fault.get("ctx", {}).get("discriminator", "type").strip("'"))
    return tuple(path)


def _has_place(value: Any, place: str | int) -> bool:
    if isinstance(value, dict):
        return place in value
    return isinstance(value, list) and isinstance(place, int) and place < len(value)


def _spell(path: Sequence[str | int]) -> str:
    """Write a path as a caller would: ``messages[0].content``."""
    text = ""
    for place in path:
        if isinstance(place, int):
            text += f"[{place}]"
        else:
            text += f".{clip(place)}" if text else clip(place)
    return text


def _neutral(model: type[Wire], path: Sequence[str | int]) -> Neutral | None:
    field = model.model_fields.get(str(path[0])) if path else None
    marks = [] if field is None else [one for one in field.metadata if isinstance(one, Neutral)]
    return marks[0] if marks else None
