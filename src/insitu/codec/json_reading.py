"""JSON values in text that comes in pieces, as the model wrote them.

Not here: what the values mean. Always true: a value's text is handed on unchanged, to the
character; only its end is looked for (by strings and the number of brackets), not its validity.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from insitu.codec.reading import SPACE, skip

if TYPE_CHECKING:
    from collections.abc import Generator

    from insitu.codec.reading import Reader, Source

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_PLAIN_ENDS = frozenset(",}]" + SPACE)


class ValueScan:
    """Finds where an object, an array or a string ends."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_done = False

    def push(self, text: str, start: int) -> int:
        """Where the value, which is known to go on at ``start``, ends or the text does."""
        at = start
        if self._is_escaped and at < len(text):
            at, self._is_escaped = at + 1, False
        while not self.is_done:
            match = (_INSIDE if self._is_in_string else _OUTSIDE).search(text, at)
            if match is None:
                return len(text)
            at = match.end()
            self._note(match.group())
            if self._is_escaped:
                if at == len(text):
                    return at
                at, self._is_escaped = at + 1, False
        return at

    def _note(self, sign: str) -> None:
        if sign == "\\":
            self._is_escaped = True
        elif sign == '"':
            self._is_in_string = not self._is_in_string
        else:
            self._depth += 1 if sign in "{[" else -1
        self.is_done = not self._depth and not self._is_in_string and not self._is_escaped


def value_pieces(source: Source) -> Generator[str | None, None, bool]:
    """A value's text as it comes (None: more is needed); whether it was whole.

    The source stands at its first character.
    """
    first = source.text[source.at]
    if first not in '{["':
        while True:
            end = next(
                (i for i in range(source.at, len(source.text)) if source.text[i] in _PLAIN_ENDS),
                None,
            )
            if end is not None:
                yield source.take(end)
                return True
            if source.is_ended:
                return False
            yield None
    scan = ValueScan()
    while True:
        end = scan.push(source.text, source.at)
        if end > source.at:
            yield source.take(end)
        if scan.is_done:
            return True
        if source.is_ended:
            return False
        yield None


def whole_value(source: Source, max_chars: int) -> Reader[str | None]:
    """A value's whole text; None where it is cut or too long."""
    pieces: list[str] = []
    size = 0
    reading = value_pieces(source)
    while True:
        try:
            piece = next(reading)
        except StopIteration as stop:
            return "".join(pieces) if stop.value else None
        if piece is None:
            yield None
            continue
        pieces.append(piece)
        size += len(piece)
        if size > max_chars:
            return None


def key(source: Source, max_chars: int) -> Reader[str | None]:
    """An object's next key and its colon, up to the value; None where there is none."""
    if not (yield from skip(source)) or source.text[source.at] != '"':
        return None
    text = yield from whole_value(source, max_chars)
    if not (yield from skip(source)) or source.text[source.at] != ":":
        return None
    source.at += 1
    return decoded(text) if (yield from skip(source)) else None


def decoded(text: str | None) -> str | None:
    """The string that a JSON string stands for."""
    try:
        value = None if text is None else json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def is_object(text: str) -> bool:
    """Whether a text is a whole JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
