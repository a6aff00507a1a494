"""The values a chat template works with, and the budget it works within.

Not here: what expressions, filters and methods do with them.

Always true: a ``Text`` knows of each character whether the template wrote it (1) or the caller (0).
Where that is lost, the text is the caller's. Nothing grows without the ``Meter`` being asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_DEPTH = 64
MAX_RANGE = 100_000
MAX_INTEGER = 2**63
_REPR_GROWTH = 4  # a character that cannot be printed is shown by its number
_CHARS_PER_FUEL = 256
_TEXTS_IN_ALL = 8  # so many of the longest text are made in one rendering, kept or not


class TemplateFault(Exception):
    """A template cannot go on: what it asked for is not there or makes no sense."""


class TemplateLimitError(TemplateFault):
    """A template did more work, or made more text, than it may."""


class TemplateRaised(TemplateFault):
    """The template itself refused, by ``raise_exception``."""


class Meter:
    """How much work is left, and how much text may be made yet.

    A node costs 1; reading or making text costs by its length.
    """

    def __init__(self, fuel: int, max_chars: int) -> None:
        self._fuel = fuel
        self._max_chars = max_chars
        self._num_chars_left = _TEXTS_IN_ALL * max_chars

    def spend(self, amount: int = 1) -> None:
        """Pay for work, or end it."""
        self._fuel -= amount
        if self._fuel < 0:
            raise TemplateLimitError("the template does too much work")

    def look(self, *values: Any) -> None:
        """Pay for reading those of the values that are texts."""
        for value in values:
            if isinstance(value, Text):
                self.spend(len(value) // _CHARS_PER_FUEL)

    def make(self, num_chars: int) -> None:
        """Pay for text about to be made."""
        self._num_chars_left -= num_chars
        if num_chars > self._max_chars or self._num_chars_left < 0:
            raise TemplateLimitError(f"the template makes more than {self._max_chars} characters")
        self.spend(num_chars // _CHARS_PER_FUEL)


class Text:
    """A string whose characters know where they came from; ``mask`` has a byte for each."""

    __slots__ = ("mask", "value")

    def __init__(self, value: str, mask: bytes) -> None:
        self.value = value
        self.mask = mask

    def __len__(self) -> int:
        """How many characters."""
        return len(self.value)

    def __getitem__(self, key: int | slice) -> Text:
        """A character, or a part with its origins."""
        if isinstance(key, int):
            return Text(self.value[key], bytes((self.mask[key],)))
        return Text(self.value[key], self.mask[key])

    def changed(self, value: str) -> Text:
        """The same text after a change of case: origins stay where characters still line up."""
        if len(value) == len(self.value):
            return Text(value, self.mask)
        if self.mask and 0 not in self.mask:
            return written(value)
        return given(value)


def written(value: str) -> Text:
    """Text of the template."""
    return Text(value, b"\1" * len(value))


def given(value: str) -> Text:
    """Text of the caller."""
    return Text(value, bytes(len(value)))


EMPTY = written("")


class SafeText(Text):
    """What ``|safe`` makes: it escapes, as HTML, what is added to it."""

    __slots__ = ()


def joined(parts: Sequence[Text], meter: Meter) -> Text:
    """Parts one after the other."""
    meter.make(sum(map(len, parts)))
    return Text("".join([p.value for p in parts]), b"".join([p.mask for p in parts]))


class Record(dict[Any, Any]):
    """A mapping. Its keys and JSON signs are the template's only if the template wrote it."""

    from_template = False

    def key_text(self, key: object) -> Any:
        """A key as a value of the template."""
        if not isinstance(key, str):
            return key
        return written(key) if self.from_template else given(key)


class Items(list[Any]):
    """A sequence; its JSON signs are the template's only if the template wrote it."""

    from_template = False


class Stream(Items):
    """What ``map`` and ``select`` give: to be gone through, with no length, items or JSON."""


@dataclass(frozen=True, slots=True)
class Undefined:
    """What is not there: empty, false, and a fault to look into."""

    name: str


@dataclass(slots=True)
class Namespace:
    """The one thing a template may change in place."""

    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    """Something a template may call."""

    name: str
    call: Callable[..., Any]


def lift(value: Any, meter: Meter, depth: int = 0) -> Any:
    """A caller's JSON value as a value of the template, all of it the caller's."""
    if depth > MAX_DEPTH:
        raise TemplateLimitError(f"a value is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        return given(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        record = Record()
        for key, item in value.items():
            record[str(key)] = lift(item, meter, depth + 1)
        return record
    if isinstance(value, (list, tuple)):
        return Items(lift(item, meter, depth + 1) for item in value)
    raise TemplateFault(f"a value of type {type(value).__name__} is not JSON")


def kind_of(value: Any) -> str:
    """A value's type, for messages."""
    if isinstance(value, Undefined):
        return f"'{value.name}', which is undefined,"
    names = {Text: "a string", Record: "a mapping", Items: "a list", type(None): "none"}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def is_number(value: Any) -> bool:
    """Whether it is an integer or float (or true or false, as in Python)."""
    return isinstance(value, (int, float))


def truth(value: Any) -> bool:
    """Whether a condition holds."""
    if isinstance(value, Undefined):
        return False
    return bool(value) if not isinstance(value, (Namespace, Function, Stream)) else True


def text_of(value: Any, meter: Meter) -> Text:
    """What a value shows when it is written out; anything but a string is the caller's text."""
    if isinstance(value, Text):
        return value
    if isinstance(value, Undefined):
        return EMPTY
    if value is None or isinstance(value, (bool, int, float)):
        return given(number_text(value))
    if isinstance(value, (Record, Items)) and not isinstance(value, Stream):
        text = repr(plain(value, meter))
        meter.make(len(text))
        return given(text)
    raise TemplateFault(f"{kind_of(value)} cannot be written out")


def number_text(value: Any) -> str:
    """A number, none, true or false as Python writes it."""
    try:
        return str(value)
    except ValueError as error:
        raise TemplateLimitError("a number has too many digits") from error


def plain(value: Any, meter: Meter, depth: int = 0) -> Any:
    """A value without origins, for showing."""
    meter.spend()
    if depth > MAX_DEPTH:
        raise TemplateLimitError(f"a value is nested more than {MAX_DEPTH} deep")
    if isinstance(value, Text):
        meter.make(_REPR_GROWTH * len(value))
        return value.value
    if isinstance(value, Record):
        return {key: plain(item, meter, depth + 1) for key, item in value.items()}
    if isinstance(value, Items):
        return [plain(item, meter, depth + 1) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TemplateFault(f"{kind_of(value)} cannot be written out")


def elements(value: Any, meter: Meter) -> list[Any]:
    """What a loop goes through: items, keys, characters."""
    if isinstance(value, Undefined):
        return []
    if isinstance(value, Items):
        meter.spend(len(value) // 16)
        return list(value)
    if isinstance(value, Record):
        meter.spend(len(value) // 16)
        return [value.key_text(key) for key in value]
    if isinstance(value, Text):
        meter.spend(len(value))
        return [value[index] for index in range(len(value))]
    raise TemplateFault(f"{kind_of(value)} cannot be looped over")


def items_of(values: list[Any], meter: Meter) -> Items:
    """A list that an operation of the template made of caller's or mixed values."""
    meter.spend(len(values) // 16)
    return Items(values)


def equal(left: Any, right: Any, meter: Meter, depth: int = 0) -> bool:
    """Whether two values are the same, by value; origins do not matter."""
    meter.spend()
    if depth > MAX_DEPTH:
        raise TemplateLimitError("values compared are nested too deep")
    if isinstance(left, Text) and isinstance(right, Text):
        meter.look(min(left, right, key=len))
        return left.value == right.value
    if isinstance(left, Items) and isinstance(right, Items):
        return len(left) == len(right) and all(
            equal(a, b, meter, depth + 1) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, Record) and isinstance(right, Record):
        return left.keys() == right.keys() and all(
            equal(item, right[key], meter, depth + 1) for key, item in left.items()
        )
    if isinstance(left, Undefined) or isinstance(right, Undefined):
        return isinstance(left, Undefined) and isinstance(right, Undefined)
    if left is None or right is None or not (is_number(left) and is_number(right)):
        return left is right
    return bool(left == right)


def contains(container: Any, value: Any, meter: Meter) -> bool:
    """``value in container``."""
    if isinstance(container, Text):
        if not isinstance(value, Text):
            raise TemplateFault(f"{kind_of(value)} cannot be in a string")
        meter.look(container)
        return value.value in container.value
    if isinstance(container, Record):
        return key_of(value) in container
    return any(equal(item, value, meter) for item in elements(container, meter))


def key_of(value: Any) -> Any:
    """A value as a mapping's key."""
    if isinstance(value, Text):
        return value.value
    if value is None or is_number(value) or isinstance(value, Undefined):
        return value  # no mapping has an undefined key
    raise TemplateFault(f"{kind_of(value)} cannot be a key")


def checked_number(value: Any) -> Any:
    """A result of arithmetic, refused where integers would grow without end."""
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        raise TemplateLimitError("an integer is too large")
    if isinstance(value, complex):
        raise TemplateFault("a number is not real")
    return value
