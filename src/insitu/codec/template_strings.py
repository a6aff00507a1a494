"""Strings' methods, as chat templates call them, keeping each character's origin.

Not here: filters (``template_filters``). Methods that are not in the table do not exist.

Always true: a result holds only characters of its operands, each with its own origin, unless it
says that origins are lost.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from insitu.codec.template_values import (
    Items,
    SafeText,
    TemplateFault,
    TemplateLimitError,
    Text,
    elements,
    joined,
    kind_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.codec.template_values import Meter

_MAX_WIDTH = 200
_CONVERSION = re.compile(r"%(?:%|(-?)(\d*)(?:\.(\d+))?([sdif]))")
_FIELD = re.compile(r"\{\{|\}\}|\{(\d{0,3}|[A-Za-z_]\w{0,99})\}")


def want_text(value: Any, what: str) -> Text:
    """A string, or a fault that says what it was for."""
    if not isinstance(value, Text):
        raise TemplateFault(f"{what} must be a string, not {kind_of(value)}")
    return value


_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"}


def added(meter: Meter, left: Text, right: Text) -> Text:
    """``+``; what is added to a safe string is escaped, and the whole is safe."""
    if not (isinstance(left, SafeText) or isinstance(right, SafeText)):
        return joined([left, right], meter)
    whole = joined([_escaped(meter, left), _escaped(meter, right)], meter)
    return SafeText(whole.value, whole.mask)


def _escaped(meter: Meter, text: Text) -> Text:
    if isinstance(text, SafeText):
        return text
    meter.make(5 * len(text))
    meter.spend(len(text) // 16)
    signs = [_ESCAPED.get(character, character) for character in text.value]
    mask = b"".join(
        bytes((origin,)) * len(sign) for sign, origin in zip(signs, text.mask, strict=True)
    )
    return Text("".join(signs), mask)


def strip(text: Text, chars: Any, *, left: bool = True, right: bool = True) -> Text:
    """Without characters at the ends."""
    wanted = None if chars is None else want_text(chars, "characters to strip").value
    start = len(text) - len(text.value.lstrip(wanted)) if left else 0
    end = len(text.value.rstrip(wanted)) if right else len(text)
    return text[start : max(start, end)]


def replace(meter: Meter, text: Text, old: Any, new: Any, count: Any = None) -> Text:
    """Every (or the first ``count``) ``old`` by ``new``."""
    old, new = want_text(old, "what to replace"), want_text(new, "a replacement")
    limit = -1 if count is None else int(count)
    num_found = text.value.count(old.value)
    if 0 <= limit < num_found:
        num_found = limit
    meter.make(len(text) + num_found * max(0, len(new) - len(old)))
    meter.spend(num_found)
    parts, at, search_at, width = [], 0, 0, len(old)
    for _ in range(num_found):
        found = text.value.find(old.value, search_at)
        parts += [text[at:found], new]
        at = found + width
        search_at = at if width else at + 1
    return joined([*parts, text[at:]], meter)


def split(meter: Meter, text: Text, sep: Any = None, maxsplit: int = -1) -> Items:
    """Parts between separators; without one, between runs of whitespace."""
    return _split(meter, text, sep, lambda between: text.value.split(between, maxsplit))


def rsplit(meter: Meter, text: Text, sep: Any = None, maxsplit: int = -1) -> Items:
    """As ``split``, counted from the end."""
    return _split(meter, text, sep, lambda between: text.value.rsplit(between, maxsplit))


def _split(meter: Meter, text: Text, sep: Any, cut: Callable[[str | None], list[str]]) -> Items:
    meter.spend(1 + len(text) // 16)
    separator = None if sep is None else want_text(sep, "a separator").value
    if separator == "":
        raise TemplateFault("a separator must not be empty")
    values = cut(separator)
    meter.spend(len(values))
    if separator is None:
        return _located(text, values)
    parts, at = Items(), 0
    for value in values:
        parts.append(text[at : at + len(value)])
        at += len(value) + len(separator)
    return parts


def splitlines(meter: Meter, text: Text, keepends: Any = False) -> Items:
    """Lines."""
    meter.spend(1 + len(text) // 16)
    lines = text.value.splitlines(keepends=True)
    meter.spend(len(lines))
    parts, at = Items(), 0
    for line in lines:
        kept = line if keepends else line.splitlines()[0]
        parts.append(text[at : at + len(kept)])
        at += len(line)
    return parts


def _located(text: Text, values: list[str]) -> Items:
    # Each part is the next place it occurs at: only whitespace lies between.
    parts, at = Items(), 0
    for value in values:
        at = text.value.index(value, at)
        parts.append(text[at : at + len(value)])
        at += len(value)
    return parts


def partition(_: Meter, text: Text, sep: Any) -> Items:
    """Before, separator, after the first one."""
    separator = want_text(sep, "a separator").value
    before, found, _after = text.value.partition(separator)
    at, end = len(before), len(before) + len(found)
    return Items((text[:at], text[at:end], text[end:]))


def join(meter: Meter, separator: Text, values: Any) -> Text:
    """Values with the separator between them."""
    parts: list[Text] = []
    for value in elements(values, meter):
        if parts:
            parts.append(separator)
        parts.append(text_of(value, meter))
    return joined(parts, meter)


def percent(meter: Meter, text: Text, values: list[Any]) -> Text:
    """``"%s and %d" % values``; with a width or as a number, the result is the caller's text."""
    parts, at, taken = [], 0, 0
    for match in _CONVERSION.finditer(text.value):
        meter.spend()
        _no_percent(text.value[at : match.start()])
        parts.append(text[at : match.start()])
        at = match.end()
        if match.group() == "%%":
            parts.append(text[at - 1 : at])
            continue
        if taken == len(values):
            raise TemplateFault("a format has too few values")
        parts.append(_converted(meter, match, values[taken]))
        taken += 1
    _no_percent(text.value[at:])
    if taken != len(values):
        raise TemplateFault("a format has too many values")
    return joined([*parts, text[at:]], meter)


def _no_percent(value: str) -> None:
    if "%" in value:
        raise TemplateFault("a format uses a conversion that is not supported")


def _converted(meter: Meter, match: re.Match[str], value: Any) -> Text:
    width, precision, kind = match[2], match[3], match[4]
    if max(len(width or ""), len(precision or "")) > 3 or (
        max(int(width or 0), int(precision or 0)) > _MAX_WIDTH
    ):
        raise TemplateLimitError(f"a format is wider than {_MAX_WIDTH}")
    text = text_of(value, meter)
    if kind == "s" and not width and not precision:
        return text
    shown: Any = text.value if kind == "s" else value
    if kind != "s" and not isinstance(value, (int, float)):
        raise TemplateFault(f"a number's format got {kind_of(value)}")
    return Text(out := match.group() % shown, bytes(len(out)))


def braces(meter: Meter, text: Text, *args: Any, **kwargs: Any) -> Text:
    """``"{} and {name}".format(...)``, without format specifications."""
    parts, at, taken = [], 0, 0
    for match in _FIELD.finditer(text.value):
        meter.spend()
        before = text[at : match.start()]
        if "{" in before.value or "}" in before.value:
            raise TemplateFault("a format uses a field that is not supported")
        parts.append(before)
        at = match.end()
        name = match[1]
        if name is None:
            parts.append(text[at - 1 : at])
        elif name and not name.isdigit():
            if name not in kwargs:
                raise TemplateFault(f"a format has no value '{name}'")
            parts.append(text_of(kwargs[name], meter))
        else:
            index, taken = (int(name), taken) if name else (taken, taken + 1)
            if index >= len(args):
                raise TemplateFault("a format has too few values")
            parts.append(text_of(args[index], meter))
    if "{" in text.value[at:] or "}" in text.value[at:]:
        raise TemplateFault("a format uses a field that is not supported")
    return joined([*parts, text[at:]], meter)


def _affix(is_prefix: bool) -> Callable[..., bool]:
    def has(_: Meter, text: Text, affix: Any) -> bool:
        wanted = affix if isinstance(affix, Items) else (affix,)
        values = tuple(want_text(one, "a beginning or end").value for one in wanted)
        return text.value.startswith(values) if is_prefix else text.value.endswith(values)

    return has


def _removed(is_prefix: bool) -> Callable[..., Text]:
    def remove(_: Meter, text: Text, affix: Any) -> Text:
        value = want_text(affix, "a beginning or end").value
        if is_prefix:
            return text[len(value) :] if text.value.startswith(value) else text
        return text[: len(text) - len(value)] if value and text.value.endswith(value) else text

    return remove


def _cased(name: str) -> Callable[..., Text]:
    change = getattr(str, name)

    def cased(meter: Meter, text: Text) -> Text:
        meter.make(3 * len(text))
        return text.changed(change(text.value))

    return cased


def _asked(name: str) -> Callable[..., bool]:
    ask = getattr(str, name)
    return lambda _, text: bool(ask(text.value))


def _found(name: str) -> Callable[..., int]:
    seek = getattr(str, name)

    def find(_: Meter, text: Text, part: Any, *bounds: Any) -> int:
        try:
            return int(seek(text.value, want_text(part, "what to look for").value, *bounds))
        except ValueError as error:
            raise TemplateFault("a string does not hold what was looked for") from error

    return find


def _stripped(*, left: bool, right: bool) -> Callable[..., Text]:
    return lambda _, text, chars=None: strip(text, chars, left=left, right=right)


def _zero_filled(meter: Meter, text: Text, width: Any) -> Text:
    if not isinstance(width, int) or width > _MAX_WIDTH:
        raise TemplateLimitError(f"a string is filled to more than {_MAX_WIDTH}")
    return Text(out := text.value.zfill(width), bytes(len(out)))


# Called with the meter, the string, then the template's own arguments.
METHODS: dict[str, Callable[..., Any]] = {
    "strip": _stripped(left=True, right=True),
    "lstrip": _stripped(left=True, right=False),
    "rstrip": _stripped(left=False, right=True),
    "replace": replace,
    "split": split,
    "rsplit": rsplit,
    "splitlines": splitlines,
    "partition": partition,
    "join": join,
    "format": braces,
    "startswith": _affix(is_prefix=True),
    "endswith": _affix(is_prefix=False),
    "removeprefix": _removed(is_prefix=True),
    "removesuffix": _removed(is_prefix=False),
    "zfill": _zero_filled,
    **{name: _cased(name) for name in ("upper", "lower", "title", "capitalize", "casefold")},
    **{name: _found(name) for name in ("find", "rfind", "index", "rindex", "count")},
    **{
        name: _asked(name)
        for name in ("isdigit", "isalpha", "isalnum", "isspace", "isupper", "islower", "isnumeric")
    },
}
