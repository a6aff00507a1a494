"""The tests (``x is defined``) that chat templates may use, and the order of values.

Always true: a test gives a bool, by value alone; origins do not matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.template_values import (
    Items,
    Record,
    TemplateFault,
    Text,
    Undefined,
    contains,
    equal,
    is_number,
    kind_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.template_values import Meter


def compare(meter: Meter, left: Any, right: Any) -> int:
    """-1, 0 or 1; only numbers and strings have an order."""
    if isinstance(left, Text) and isinstance(right, Text):
        meter.look(min(left, right, key=len))
        return (left.value > right.value) - (left.value < right.value)
    if is_number(left) and is_number(right):
        return int(left > right) - int(left < right)
    raise TemplateFault(f"{kind_of(left)} and {kind_of(right)} have no order")


def _ordered(signs: tuple[int, ...]) -> Callable[..., bool]:
    return lambda meter, left, right: compare(meter, left, right) in signs


def _divisible(_: Meter, value: Any, by: Any) -> bool:
    if not is_number(value) or not is_number(by) or not by:
        raise TemplateFault("only numbers are divisible, and not by 0")
    return bool(value % by == 0)


def _is(*types: type) -> Callable[..., bool]:
    return lambda _, value: isinstance(value, types)


def _case(name: str) -> Callable[..., bool]:
    ask = getattr(str, name)
    return lambda meter, value: bool(ask(text_of(value, meter).value))


def _equal(meter: Meter, left: Any, right: Any) -> bool:
    return equal(left, right, meter)


TESTS: dict[str, Callable[..., bool]] = {
    "boolean": _is(bool),
    "defined": lambda _, value: not isinstance(value, Undefined),
    "divisibleby": _divisible,
    "even": lambda meter, value: _divisible(meter, value, 2),
    "false": lambda _, value: value is False,
    "float": _is(float),
    "in": lambda meter, value, container: contains(container, value, meter),
    "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    "iterable": _is(Text, Items, Record, Undefined),
    "lower": _case("islower"),
    "mapping": _is(Record),
    "none": lambda _, value: value is None,
    "number": _is(int, float),
    "odd": lambda meter, value: not _divisible(meter, value, 2),
    "sameas": lambda _, left, right: left is right,
    "sequence": _is(Text, Items, Record, Undefined),
    "string": _is(Text),
    "true": lambda _, value: value is True,
    "undefined": _is(Undefined),
    "upper": _case("isupper"),
    **dict.fromkeys(("eq", "equalto", "=="), _equal),
    **dict.fromkeys(("ne", "!="), lambda meter, a, b: not _equal(meter, a, b)),
    **dict.fromkeys(("lt", "lessthan", "<"), _ordered((-1,))),
    **dict.fromkeys(("le", "<="), _ordered((-1, 0))),
    **dict.fromkeys(("gt", "greaterthan", ">"), _ordered((1,))),
    **dict.fromkeys(("ge", ">="), _ordered((0, 1))),
}
