"""Put GGUF bytes together by hand, right or wrong, for tests of everything that reads them.

Not here: models (``tiny_model``). Always true: nothing is checked, so a test can write any fault.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {
    U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q",
    I64: "q", F64: "d",
}  # fmt: skip
TENSOR_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10,
    "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18,
    "IQ1_S": 19, "IQ4_NL": 20, "IQ3_S": 21, "IQ2_S": 22, "IQ4_XS": 23, "IQ1_M": 29, "BF16": 30,
    "TQ1_0": 34, "TQ2_0": 35, "MXFP4": 39,
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A value with its type number; for an array ``element`` is the type of each."""

    kind: int
    value: Any
    element: int = STRING


@dataclass(frozen=True)
class TensorBytes:
    """A tensor: dims innermost first, ``offset`` None to follow the one before it."""

    name: str | bytes
    dims: Sequence[int]
    kind: int
    data: bytes
    offset: int | None = None


class Builder:
    """Bytes of one byte order: "<" or ">"."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def number(self, code: str, value: Any) -> bytes:
        """One number."""
        return struct.pack(self.order + code, value)

    def string(self, text: str | bytes) -> bytes:
        """Length and bytes."""
        raw = text.encode() if isinstance(text, str) else text
        return self.number("Q", len(raw)) + raw

    def value(self, typed: Typed) -> bytes:
        """Type and value."""
        return self.number("I", typed.kind) + self._bare(typed.kind, typed.value, typed.element)

    def _bare(self, kind: int, value: Any, element: int) -> bytes:
        if kind == STRING:
            return self.string(value)
        if kind == ARRAY:
            head = self.number("I", element) + self.number("Q", len(value))
            if element not in (STRING, ARRAY):
                return head + struct.pack(f"{self.order}{len(value)}{CODES[element]}", *value)
            return head + b"".join(self._bare(element, item, U32) for item in value)
        return self.number(CODES[kind], value)

    def pairs(self, pairs: Iterable[tuple[str | bytes, Typed]]) -> bytes:
        """Keys with their values."""
        return b"".join(self.string(key) + self.value(typed) for key, typed in pairs)


def typed(value: Any) -> Typed:
    """The type a converter would choose."""
    if isinstance(value, Typed):
        return value
    if isinstance(value, bool):
        return Typed(BOOL, int(value))
    if isinstance(value, int):
        return Typed(U32, value)
    if isinstance(value, float):
        return Typed(F32, value)
    if isinstance(value, (str, bytes)):
        return Typed(STRING, value)
    kinds = {str: STRING, bytes: STRING, int: I32, float: F32}
    return Typed(ARRAY, list(value), kinds[type(value[0])] if value else STRING)


def gguf_bytes(
    pairs: Mapping[str, Any] | Sequence[tuple[str | bytes, Any]],
    tensors: Sequence[TensorBytes] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    order: str = "<",
) -> bytes:
    """A whole file. Tensors follow each other, padded, unless they give an offset."""
    build = Builder(order)
    items = list(pairs.items()) if isinstance(pairs, dict) else list(pairs)
    head = b"GGUF" + build.number("I", version)
    head += build.number("Q", len(tensors)) + build.number("Q", len(items))
    head += build.pairs((key, typed(value)) for key, value in items)
    data = bytearray()
    for tensor in tensors:
        data += b"\0" * (-len(data) % alignment)
        offset = len(data) if tensor.offset is None else tensor.offset
        data[len(data) :] = b"\0" * max(0, offset - len(data))
        data[offset : offset + len(tensor.data)] = tensor.data
        head += build.string(tensor.name) + build.number("I", len(tensor.dims))
        head += b"".join(build.number("Q", dim) for dim in tensor.dims)
        head += build.number("I", tensor.kind) + build.number("Q", offset)
    return head + b"\0" * (-len(head) % alignment) + bytes(data)
