"""The filters that chat templates may use.

Not here: tests (``template_tests``), methods (``template_strings``), JSON (``template_json``).

Always true: a filter gives the characters of its operands with their origins, or the caller's text.
"""

from __future__ import annotations

import re
from functools import cmp_to_key, partial
from typing import TYPE_CHECKING, Any

from insitu.codec import template_strings as strings
from insitu.codec.template_json import JSONWriter
from insitu.codec.template_tests import TESTS, compare
from insitu.codec.template_values import (
    EMPTY,
    Items,
    Record,
    SafeText,
    Stream,
    TemplateFault,
    TemplateLimitError,
    Text,
    Undefined,
    checked_number,
    contains,
    elements,
    is_number,
    items_of,
    joined,
    kind_of,
    text_of,
    truth,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.template_values import Meter

_MAX_INDENT = 200
_WORD_START = re.compile(r"([-\s({\[<]+)")


def _path(path: Any) -> list[str]:
    """``a.b.0`` in its parts, as ``map`` and ``selectattr`` take it."""
    names = str(path) if isinstance(path, int) else strings.want_text(path, "an attribute").value
    return names.split(".")


def _attribute(meter: Meter, value: Any, path: list[str]) -> Any:
    meter.spend(len(path))
    for name in path:
        if isinstance(value, Record):
            value = value.get(name, Undefined(name))
        elif isinstance(value, Items) and name.isdigit():
            value = value[int(name)] if int(name) < len(value) else Undefined(name)
        else:
            value = Undefined(name)
    return value


def _length(_: Meter, value: Any) -> int:
    if isinstance(value, Undefined):
        return 0
    if isinstance(value, (Text, Items, Record)) and not isinstance(value, Stream):
        return len(value)
    raise TemplateFault(f"{kind_of(value)} has no length")


def _default(_: Meter, value: Any, default_value: Any = EMPTY, boolean: Any = False) -> Any:
    is_absent = isinstance(value, Undefined) or (truth(boolean) and not truth(value))
    return default_value if is_absent else value


def _first(meter: Meter, value: Any) -> Any:
    return next(iter(elements(value, meter)), Undefined("first"))


def _last(meter: Meter, value: Any) -> Any:
    return next(reversed(elements(value, meter)), Undefined("last"))


def _list(meter: Meter, value: Any) -> Items:
    return items_of(elements(value, meter), meter)


def _reverse(meter: Meter, value: Any) -> Any:
    if isinstance(value, Text):
        return value[::-1]
    return items_of(elements(value, meter)[::-1], meter)


def pairs(meter: Meter, value: Any) -> Items:
    """A mapping's keys with their values."""
    if isinstance(value, Undefined):
        return Items()
    if not isinstance(value, Record):
        raise TemplateFault(f"{kind_of(value)} has no items")
    meter.spend(len(value))
    return Items(Items((value.key_text(key), item)) for key, item in value.items())


def _join(meter: Meter, value: Any, d: Any = EMPTY, attribute: Any = None) -> Text:
    if attribute is not None:
        value = _map(meter, value, attribute=attribute)
    return strings.join(meter, text_of(d, meter), value)


def _map(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> Stream:
    value = value if truth(value) else Items()
    if not args:
        asked = kwargs.pop("attribute", None)
        fallback = kwargs.pop("default", None)
        if asked is None or kwargs:
            raise TemplateFault("map needs a filter or an attribute")
        path = _path(asked)
        found = [_attribute(meter, item, path) for item in elements(value, meter)]
        if fallback is not None:
            found = [fallback if isinstance(item, Undefined) else item for item in found]
        return Stream(items_of(found, meter))
    name = strings.want_text(args[0], "a filter's name").value
    apply = named(FILTERS, name, "filter")
    made = Stream()
    for item in elements(value, meter):
        meter.spend()
        meter.look(item, *args[1:], *kwargs.values())
        made.append(apply(meter, item, *args[1:], **kwargs))
    return made


def _select(*, has_attribute: bool, is_kept: bool) -> Callable[..., Stream]:
    def select(meter: Meter, value: Any, *args: Any) -> Stream:
        value = value if truth(value) else Items()
        if has_attribute and not args:
            raise TemplateFault("selectattr needs an attribute")
        path, rest = (_path(args[0]), args[1:]) if has_attribute else ([], args)
        name = strings.want_text(rest[0], "a test's name").value if rest else None
        test = None if name is None else named(TESTS, name, "test")
        kept = []
        for item in elements(value, meter):
            meter.spend()
            part = _attribute(meter, item, path)
            meter.look(part, *rest)
            holds = truth(part) if test is None else truth(test(meter, part, *rest[1:]))
            if holds == is_kept:
                kept.append(item)
        return Stream(kept)

    return select


def named(table: dict[str, Callable[..., Any]], name: str, what: str) -> Callable[..., Any]:
    """The filter or test of that name."""
    if name not in table:
        raise TemplateFault(f"{what} '{name[:80]}' is not supported")
    return table[name]


def _folded(meter: Meter, values: list[Any], case_sensitive: Any) -> list[Any]:
    if truth(case_sensitive):
        return values
    lower = strings.METHODS["lower"]
    return [lower(meter, value) if isinstance(value, Text) else value for value in values]


def _sorted(meter: Meter, values: list[Any], keys: list[Any], *, reverse: bool) -> Items:
    meter.spend(8 * len(values))  # about log2(n) comparisons of each, which pay for what they read
    rank = cmp_to_key(partial(compare, meter))
    order = sorted(range(len(values)), key=lambda index: rank(keys[index]), reverse=reverse)
    return Items(values[index] for index in order)


def _sort(
    meter: Meter,
    value: Any,
    reverse: Any = False,
    case_sensitive: Any = False,
    attribute: Any = None,
) -> Items:
    values = elements(value, meter)
    keys = values if attribute is None else list(_map(meter, value, attribute=attribute))
    keys = _folded(meter, keys, case_sensitive)
    return _sorted(meter, values, keys, reverse=truth(reverse))


def _dictsort(
    meter: Meter, value: Any, case_sensitive: Any = False, by: Any = None, reverse: Any = False
) -> Items:
    entries = list(pairs(meter, value))
    column = 1 if isinstance(by, Text) and by.value == "value" else 0
    keys = _folded(meter, [entry[column] for entry in entries], case_sensitive)
    return _sorted(meter, entries, keys, reverse=truth(reverse))


def _unique(meter: Meter, value: Any, case_sensitive: Any = False, attribute: Any = None) -> Items:
    values = elements(value, meter)
    keys = values if attribute is None else list(_map(meter, value, attribute=attribute))
    kept, seen = Stream(), Items()
    for item, folded in zip(values, _folded(meter, keys, case_sensitive), strict=True):
        if not contains(seen, folded, meter):
            seen.append(folded)
            kept.append(item)
    return kept


def _extreme(sign: int) -> Callable[..., Any]:
    def extreme(meter: Meter, value: Any) -> Any:
        values = elements(value, meter)
        best: Any = Undefined("min" if sign < 0 else "max")
        for item in values:
            meter.spend()
            if isinstance(best, Undefined) or compare(meter, item, best) == sign:
                best = item
        return best

    return extreme


def _sum(meter: Meter, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    values = elements(value, meter)
    if attribute is not None:
        values = list(_map(meter, value, attribute=attribute))
    for item in values:
        if not is_number(item) or not is_number(start):
            raise TemplateFault(f"{kind_of(item)} cannot be summed")
        start = checked_number(start + item)
    return start


def _int(_: Meter, value: Any, default: Any = 0, base: Any = 10) -> Any:
    raw = value.value if isinstance(value, Text) else value
    try:
        result = int(raw, base) if isinstance(raw, str) else int(raw)
    except (TypeError, ValueError, OverflowError):
        try:
            result = int(float(raw))
        except (TypeError, ValueError, OverflowError):
            return default
    return checked_number(result)


def _float(_: Meter, value: Any, default: Any = 0.0) -> Any:
    try:
        return float(value.value if isinstance(value, Text) else value)
    except (TypeError, ValueError, OverflowError):
        return default


def _round(_: Meter, value: Any, precision: Any = 0) -> Any:
    if not is_number(value) or not isinstance(precision, int) or abs(precision) > 20:
        raise TemplateFault(f"{kind_of(value)} cannot be rounded")
    return round(float(value), precision)


def _abs(_: Meter, value: Any) -> Any:
    if not is_number(value):
        raise TemplateFault(f"{kind_of(value)} has no absolute value")
    return abs(value)


def _cased(name: str) -> Callable[..., Text]:
    return lambda meter, value: strings.METHODS[name](meter, text_of(value, meter))


def _title(meter: Meter, value: Any) -> Text:
    text = text_of(value, meter)
    meter.make(3 * len(text))
    meter.spend(len(text) // 16)
    words = _WORD_START.split(text.value)
    return text.changed("".join(word[:1].upper() + word[1:].lower() for word in words))


def _indent(
    meter: Meter, value: Any, width: Any = 4, first: Any = False, blank: Any = False
) -> Text:
    text = text_of(value, meter)
    if isinstance(width, Text):
        space = width
    elif isinstance(width, int) and width <= _MAX_INDENT:
        space = written(" " * width)
    else:
        raise TemplateLimitError(f"an indent is wider than {_MAX_INDENT}")
    meter.make(len(text) + text.value.count("\n") * len(space))
    parts: list[Text] = [space] if truth(first) else []
    # A line break at the very end opens one more, empty, line.
    for index, line in enumerate(strings.METHODS["split"](meter, text, written("\n"))):
        if index:
            parts.append(written("\n"))
            if len(line) or truth(blank):
                parts.append(space)
        parts.append(line)
    return joined(parts, meter)


def _tojson(
    meter: Meter,
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> Text:
    if indent is not None and not isinstance(indent, int):
        raise TemplateFault("JSON's indent must be a number")
    marks = None
    if separators is not None:
        comma, colon = elements(separators, meter)
        marks = (
            strings.want_text(comma, "a comma").value,
            strings.want_text(colon, "a colon").value,
        )
    writer = JSONWriter(
        meter,
        indent=indent,
        separators=marks,
        sort_keys=truth(sort_keys),
        ensure_ascii=truth(ensure_ascii),
    )
    return writer.write(value)


def _format(meter: Meter, value: Any, *args: Any) -> Text:
    return strings.percent(meter, text_of(value, meter), list(args))


def _parts(text: Text) -> tuple[str, bytes]:
    return text.value, text.mask


FILTERS: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "capitalize": _cased("capitalize"),
    "count": _length,
    "d": _default,
    "default": _default,
    "dictsort": _dictsort,
    "first": _first,
    "float": _float,
    "format": _format,
    "indent": _indent,
    "int": _int,
    "items": pairs,
    "join": _join,
    "last": _last,
    "length": _length,
    "list": _list,
    "lower": _cased("lower"),
    "map": _map,
    "max": _extreme(1),
    "min": _extreme(-1),
    "reject": _select(has_attribute=False, is_kept=False),
    "rejectattr": _select(has_attribute=True, is_kept=False),
    "replace": lambda meter, value, old, new, count=None: strings.replace(
        meter, text_of(value, meter), text_of(old, meter), text_of(new, meter), count
    ),
    "reverse": _reverse,
    "round": _round,
    "safe": lambda meter, value: SafeText(*_parts(text_of(value, meter))),
    "select": _select(has_attribute=False, is_kept=True),
    "selectattr": _select(has_attribute=True, is_kept=True),
    "sort": _sort,
    "string": lambda meter, value: text_of(value, meter),
    "sum": _sum,
    "title": _title,
    "tojson": _tojson,
    "trim": lambda meter, value, chars=None: strings.strip(text_of(value, meter), chars),
    "unique": _unique,
    "upper": _cased("upper"),
}
