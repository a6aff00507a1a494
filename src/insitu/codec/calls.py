"""The calls of one answer while they are read, and the parts they give.

Not here: what a call looks like (``call_formats``). Always true: only tools of the request are
called; arguments are handed on as the model wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.codec.json_reading import decoded, is_object, key, value_pieces, whole_value
from insitu.codec.reading import Part, follows, skip
from insitu.types import ToolCallPiece

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from insitu.codec.reading import Reader, Source

# Of a call whose tool is not known yet: what is longer is no call.
MAX_HELD_CHARS = 65_536
NAME_KEYS = ("name", "function")
ARGUMENT_KEYS = ("arguments", "parameters")


class NotACall(Exception):
    """Text that began like a call and is none: it stays text."""


class Enough(Exception):
    """The one call that was allowed has been made."""


@dataclass(slots=True)
class Calls:
    """Counts calls; ``tools`` maps each name that may be called to its parameters' schema.

    ``most`` None: any number.
    """

    tools: Mapping[str, Any]
    new_id: Callable[[int], str]
    most: int | None = None
    num_begun: int = 0
    num_complete: int = 0

    def begin(self, source: Source, name: str) -> Part:
        """A call of a tool."""
        if name not in self.tools:
            raise NotACall
        index = self.num_begun
        self.num_begun += 1
        source.keep()  # what was said cannot be taken back
        piece = ToolCallPiece(index, id=self.new_id(index), name=name)
        return Part(source.position, call=piece)

    def add(self, source: Source, arguments: str) -> Part:
        """More of the last call's arguments."""
        return Part(source.position, call=ToolCallPiece(self.num_begun - 1, arguments))

    def complete(self) -> None:
        """The last call is whole."""
        self.num_complete += 1
        if self.is_full:
            raise Enough

    @property
    def is_full(self) -> bool:
        """Whether no other call may follow."""
        return self.num_complete == self.most

    def whole(self, source: Source, name: str, arguments: str) -> Reader[None]:
        """A call that is known as a whole."""
        yield self.begin(source, name)
        yield self.add(source, arguments)
        self.complete()


def read_arguments(source: Source, calls: Calls) -> Reader[None]:
    """The arguments of the call just begun: an object, handed on as it comes."""
    pieces = value_pieces(source)
    while True:
        try:
            piece = next(pieces)
        except StopIteration as stop:
            if stop.value:
                calls.complete()
            return
        yield None if piece is None else calls.add(source, piece)


def read_object(source: Source, calls: Calls) -> Reader[None]:
    """A call written as an object: its name and its arguments, in either order.

    {"name": "f", "arguments": {...}} or {"parameters": {...}, "name": "f"}
    """
    if not (yield from follows(source, "{")):
        raise NotACall
    seen = _Seen()
    while (field := (yield from key(source, MAX_HELD_CHARS))) is not None:
        if not (yield from _read_field(source, calls, field, seen)):
            break
        yield from skip(source)
        if not (yield from follows(source, ",")):
            break
    is_closed = yield from follows(source, "}")
    if not seen.has_begun:
        if seen.name is None or not is_closed:
            raise NotACall
        yield from calls.whole(source, seen.name, seen.arguments)


@dataclass(slots=True)
class _Seen:
    """What is known of a call before it begins."""

    name: str | None = None
    arguments: str = "{}"
    has_begun: bool = False


def _read_field(source: Source, calls: Calls, field: str, seen: _Seen) -> Reader[bool]:
    """A field's value; False where it was cut or too long."""
    first = source.text[source.at]
    if field in ARGUMENT_KEYS and seen.name is not None and first == "{":
        yield calls.begin(source, seen.name)
        seen.has_begun = True
        yield from read_arguments(source, calls)
        return True
    value = yield from whole_value(source, MAX_HELD_CHARS)
    if field in NAME_KEYS and seen.name is None and first == '"':
        seen.name = decoded(value)
    elif field in ARGUMENT_KEYS and not seen.has_begun:
        seen.arguments = _arguments(value)
    return value is not None


def _arguments(text: str | None) -> str:
    """Arguments that came before the name, or as a string that holds them."""
    if text is None:
        raise NotACall
    if text.startswith('"'):
        text = decoded(text) or "{}"
    if text == "null":
        return "{}"
    if not is_object(text):
        raise NotACall
    return text
