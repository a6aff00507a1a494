"""Kinds of values: how the text of a flag or a value of the settings file is read and checked.

Not here: which settings there are (``fields``). Always true: a value that a kind lets through is of
its type and in its range; nothing is coerced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_UNITS = {
    "": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "b": 1,
}  # fmt: skip
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://[!-.0-~]+")  # visible ASCII without a slash
_HOST_BYTES_MAX = 253


class WrongValue(Exception):
    """A value refused by its kind; the text says what is wanted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting's value is read. ``read`` takes text of a flag or a value of the file."""

    metavar: str
    read: Callable[[Any], Any]
    is_flag: bool = False
    is_repeatable: bool = False


def _integer(minimum: int, maximum: int) -> Kind:
    def read(raw: Any) -> int:
        is_number = isinstance(raw, int) and not isinstance(raw, bool)
        if not is_number and not (
            isinstance(raw, str) and re.fullmatch(r"-?\d{1,18}", raw.strip())
        ):
            raise WrongValue("a whole number")
        if not minimum <= int(raw) <= maximum:
            raise WrongValue(f"a whole number from {minimum} to {maximum}")
        return int(raw)

    return Kind("N", read)


def _seconds(raw: Any) -> float:
    try:
        value = float(raw) if not isinstance(raw, bool) else -1.0
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 86_400:
        raise WrongValue("seconds, from 0 to 86400")
    return value


def _size(raw: Any) -> int:
    wanted = "a size in bytes such as 536870912, 512MiB or 2GiB"
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise WrongValue(wanted)
    match = _SIZE.fullmatch(str(raw).strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS:
        raise WrongValue(wanted)
    value = float(match[1]) if "." in match[1] else int(match[1])
    size = int(value * _UNITS[unit])
    if not 0 < size < 2**62:
        raise WrongValue(wanted)
    return size


def _boolean(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise WrongValue("true or false")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip() or any(ord(c) < 32 for c in raw):
        raise WrongValue("a text that is not empty")
    return raw


def _host(raw: Any) -> str:
    text = _text(raw)
    if len(text) > _HOST_BYTES_MAX or any(c in text for c in " /@"):
        raise WrongValue("an address or host name")
    return text


def _path(raw: Any) -> Path:
    if isinstance(raw, Path):
        return raw
    try:
        return Path(_text(raw)).expanduser()
    except RuntimeError:
        raise WrongValue("a path whose ~ is the home of somebody here") from None


def _origin(raw: Any) -> str:
    text = _text(raw)
    if not _ORIGIN.fullmatch(text.removesuffix("/")):
        raise WrongValue("an origin as a browser sends it, such as https://example.org,")
    return text


def _many(read: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    def read_all(raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, (list, tuple)):
            raise WrongValue("a list of texts")
        return tuple(read(item) for item in raw)

    return read_all


def one_of(*choices: str) -> Kind:
    def read(raw: Any) -> str:
        if raw not in choices:
            raise WrongValue(f"one of {', '.join(choices)}")
        return str(raw)

    return Kind("|".join(choices), read)


def one_number_of(*choices: int) -> Kind:
    number = _integer(min(choices), max(choices))
    wanted = " or ".join(map(str, choices))

    def read(raw: Any) -> int:
        try:
            value: int = number.read(raw)
        except WrongValue:
            raise WrongValue(wanted) from None
        if value not in choices:
            raise WrongValue(wanted)
        return value

    return Kind("|".join(map(str, choices)), read)


INTEGER = _integer
SECONDS = Kind("SECONDS", _seconds)
SIZE = Kind("BYTES", _size)
BOOLEAN = Kind("", _boolean, is_flag=True)
TEXT = Kind("TEXT", _text)
HOST = Kind("HOST", _host)
FILE = Kind("FILE", _path)
FOLDER = Kind("DIR", _path)
HOSTS = Kind("HOST", _many(_host), is_repeatable=True)
NAMES = Kind("TEXT", _many(_text), is_repeatable=True)
ORIGINS = Kind("ORIGIN", _many(_origin), is_repeatable=True)
