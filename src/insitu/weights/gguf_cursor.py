"""Take numbers, strings and arrays out of a GGUF header, never trusting a length.

Not here: what keys and tensors mean (``gguf``).

Always true: every length and count is checked against the bytes left before it is used, so nothing
is allocated or looped over that the file does not hold.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from insitu.weights.errors import ModelFileError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Scalar types by number: struct code, kind. 7 is a byte that must be 0 or 1; 8 and 9 are below.
SCALARS = {
    0: ("B", "integer"),
    1: ("b", "integer"),
    2: ("H", "integer"),
    3: ("h", "integer"),
    4: ("I", "integer"),
    5: ("i", "integer"),
    6: ("f", "number"),
    7: ("B", "boolean"),
    10: ("Q", "integer"),
    11: ("q", "integer"),
    12: ("d", "number"),
}
STRING, ARRAY, BOOLEAN = 8, 9, 7
MAX_VALUE_BYTES = 4 << 20  # of one string value (a chat template is some kilobytes)
MAX_STRINGS = 4 << 20  # of all arrays: several times the largest vocabulary with its merges


class TypedArray:
    """Numbers or booleans, left in the file until asked for."""

    def __init__(self, data: memoryview, code: str, kind: str) -> None:
        self._array = np.frombuffer(data, f"<{code}")
        self.kind = kind

    def __len__(self) -> int:
        """How many elements."""
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        """All elements."""
        items = self._array.tolist()
        return iter([bool(item) for item in items] if self.kind == "boolean" else items)


class StringArray:
    """Strings, left in the file until asked for; ``data`` was walked and ends with the last."""

    kind = "string"

    def __init__(self, data: memoryview, ends: array[int]) -> None:
        self._data = data
        self._ends = ends  # of each string, from the first one's length on

    def __len__(self) -> int:
        """How many strings."""
        return len(self._ends)

    def __iter__(self) -> Iterator[bytes]:
        """One string after the other."""
        data, at = bytes(self._data), 0
        for end in self._ends:
            yield data[at + 8 : end]
            at = end


class Cursor:
    """A place in the header that only moves forward."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self._path = path
        self._data = data
        self._num_strings = 0
        self.at = 0

    @property
    def num_left(self) -> int:
        """Bytes from here to the end of the file."""
        return len(self._data) - self.at

    def fail(self, field: str, message: str) -> NoReturn:
        """Raise the named error about this place."""
        raise ModelFileError(self._path, f"{field} at offset {self.at}", message)

    def u32(self, field: str) -> int:
        """A 32-bit count or type."""
        return int(self._number(_U32, field))

    def u64(self, field: str) -> int:
        """A 64-bit length or count."""
        return int(self._number(_U64, field))

    def count(self, field: str, element_bytes: int, maximum: int) -> int:
        """A 64-bit count of things that take at least ``element_bytes`` each."""
        at = self.at
        count = self.u64(field)
        if count > maximum or count * element_bytes > self.num_left:
            self.at = at
            limit = min(maximum, self.num_left // element_bytes)
            self.fail(field, f"is {count}, but at most {limit} are possible here")
        return count

    def string(self, field: str, max_bytes: int) -> str:
        """A string with its length before it, of valid UTF-8."""
        at = self.at
        length = self.u64(f"{field} length")
        if length > self.num_left:
            self.at = at
            self.fail(f"{field} length", f"is {length}, with {len(self._data) - at - 8} bytes left")
        if length > max_bytes:
            self.at = at
            self.fail(f"{field} length", f"is {length}, above {max_bytes}")
        raw = bytes(self._data[self.at : self.at + length])
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.fail(field, f"{shown(raw)} is not valid UTF-8")
        self.at += length
        return text

    def name(self, field: str, max_bytes: int) -> str:
        """A string that names something: not empty, and without control characters."""
        at = self.at
        text = self.string(field, max_bytes)
        if not text or not text.isprintable():
            self.at = at
            self.fail(field, f"{shown(text)} is not a name")
        return text

    def value(self, key: str) -> Any:
        """The type and value of a key."""
        field = f"value of {shown(key)[1:-1]}"
        kind = self.u32(f"type of {field}")
        if kind == STRING:
            return self.string(field, MAX_VALUE_BYTES)
        if kind == ARRAY:
            return self._array(field)
        if kind not in SCALARS:
            self.at -= 4
            self.fail(f"type of {field}", f"{kind} is not a GGUF value type")
        value = self._number(struct.Struct("<" + SCALARS[kind][0]), field)
        if kind != BOOLEAN:
            return value
        if value not in {0, 1}:
            self.at -= 1
            self.fail(field, f"is a boolean of {value}")
        return bool(value)

    def _number(self, layout: struct.Struct, field: str) -> Any:
        if self.num_left < layout.size:
            self.fail(field, f"needs {layout.size} bytes, with {self.num_left} left")
        value = layout.unpack_from(self._data, self.at)[0]
        self.at += layout.size
        return value

    def _array(self, field: str) -> TypedArray | StringArray:
        kind = self.u32(f"element type of {field}")
        if kind == ARRAY:
            self.at -= 4
            self.fail(f"element type of {field}", "is array: nested arrays are not supported")
        if kind == STRING:
            return self._strings(field)
        if kind not in SCALARS:
            self.at -= 4
            self.fail(f"element type of {field}", f"{kind} is not a GGUF value type")
        code, name = SCALARS[kind]
        size = struct.calcsize("<" + code)
        count = self.count(f"count of {field}", size, self.num_left)
        data = self._data[self.at : self.at + count * size]
        if kind == BOOLEAN and count and int(np.frombuffer(data, np.uint8).max()) > 1:
            self.fail(field, "holds a boolean that is neither 0 nor 1")
        self.at += count * size
        return TypedArray(data, code, name)

    def _strings(self, field: str) -> StringArray:
        """Walk the lengths to find the end; the text is not looked at yet."""
        count = self.count(f"count of {field}", 8, MAX_STRINGS - self._num_strings)
        self._num_strings += count
        data, at, unpack = self._data[self.at :], 0, _U64.unpack_from
        ends: array[int] = array("I" if len(data) < 1 << 32 else "Q")
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
                ends.append(at)
        except (struct.error, OverflowError):  # a length led beyond the file, or beyond 2^64
            at = len(data) + 1
        if at > len(data):
            index = bisect_right(ends, len(data))
            self.fail(f"{field}[{index}]", "ends beyond the file")
        self.at += at
        return StringArray(data[:at], ends)
