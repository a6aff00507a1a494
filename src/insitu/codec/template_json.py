"""JSON text of a template's value: the ``tojson`` filter as chat templates know it.

Not here: parsing JSON.

Always true: a container's brackets, commas and keys are the caller's text where the container is
the caller's; numbers and words (true, null) always are.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.codec.template_values import (
    MAX_DEPTH,
    Items,
    Record,
    Stream,
    TemplateFault,
    TemplateLimitError,
    Text,
    given,
    joined,
    kind_of,
    number_text,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.codec.template_values import Meter

_MAX_INDENT = 16


class JSONWriter:
    """Writes one value; ``indent`` None keeps it on one line."""

    def __init__(
        self,
        meter: Meter,
        *,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
        ensure_ascii: bool = False,
    ) -> None:
        if indent is not None and not 0 <= indent <= _MAX_INDENT:
            raise TemplateLimitError(f"JSON is indented by more than {_MAX_INDENT}")
        self._meter = meter
        self._indent = indent
        self._comma, self._colon = separators or (", " if indent is None else ",", ": ")
        self._sort_keys = sort_keys
        self._ensure_ascii = ensure_ascii
        self._parts: list[Text] = []

    def write(self, value: Any) -> Text:
        """The value's JSON."""
        self._value(value, 0)
        return joined(self._parts, self._meter)

    def _value(self, value: Any, depth: int) -> None:
        self._meter.spend()
        if depth > MAX_DEPTH:
            raise TemplateLimitError(f"a value is nested more than {MAX_DEPTH} deep")
        if isinstance(value, Text):
            self._parts.append(self._string(value))
        elif isinstance(value, Record):
            self._record(value, depth)
        elif isinstance(value, Items) and not isinstance(value, Stream):
            self._items(value, depth)
        elif value is None or isinstance(value, (bool, int, float)):
            self._parts.append(given(self._scalar(value)))
        else:
            raise TemplateFault(f"{kind_of(value)} has no JSON")

    def _record(self, record: Record, depth: int) -> None:
        sign = written if record.from_template else given
        keys = sorted(record, key=str) if self._sort_keys else list(record)
        self._open(sign("{"), sign, depth, is_empty=not keys)
        for index, key in enumerate(keys):
            if index:
                self._between(sign, depth)
            name = key if isinstance(key, str) else self._scalar(key)
            self._meter.make(len(self._colon))
            self._parts += [self._string(sign(name)), sign(self._colon)]
            self._value(record[key], depth + 1)
        self._close(sign("}"), sign, depth, is_empty=not keys)

    def _items(self, items: Items, depth: int) -> None:
        sign = written if items.from_template else given
        self._open(sign("["), sign, depth, is_empty=not items)
        for index, item in enumerate(items):
            if index:
                self._between(sign, depth)
            self._value(item, depth + 1)
        self._close(sign("]"), sign, depth, is_empty=not items)

    def _open(self, bracket: Text, sign: Any, depth: int, *, is_empty: bool) -> None:
        self._parts.append(bracket)
        if self._indent is not None and not is_empty:
            self._parts.append(sign(self._line(depth + 1)))

    def _between(self, sign: Any, depth: int) -> None:
        self._meter.make(len(self._comma))
        self._parts.append(sign(self._comma + self._line(depth + 1)))

    def _close(self, bracket: Text, sign: Any, depth: int, *, is_empty: bool) -> None:
        if self._indent is not None and not is_empty:
            self._parts.append(sign(self._line(depth)))
        self._parts.append(bracket)

    def _line(self, depth: int) -> str:
        """The start of a line at this depth, where there are lines at all."""
        if self._indent is None:
            return ""
        self._meter.make(self._indent * depth)
        return "\n" + " " * (self._indent * depth)

    def _scalar(self, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return number_text(value)
        return json.dumps(value)

    def _string(self, text: Text) -> Text:
        self._meter.make(6 * len(text))
        quoted = json.dumps(text.value, ensure_ascii=self._ensure_ascii)
        if 0 not in text.mask:
            return written(quoted)
        if 1 not in text.mask:
            return given(quoted)
        parts = [written('"')]
        for start, end in runs(text.mask, self._meter):
            sign = written if text.mask[start] else given
            inner = json.dumps(text.value[start:end], ensure_ascii=self._ensure_ascii)[1:-1]
            parts.append(sign(inner))
        # A string that is partly the caller's is quoted by the caller's marks.
        parts[0] = given('"')
        return joined([*parts, given('"')], self._meter)


def runs(mask: bytes, meter: Meter) -> Iterator[tuple[int, int]]:
    """Stretches of one origin."""
    start = 0
    while start < len(mask):
        meter.spend()
        end = mask.find(1 - mask[start], start)
        end = len(mask) if end < 0 else end
        yield start, end
        start = end
