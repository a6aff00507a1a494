"""Keys and values of a model file, taken out by type; a wrong type or range names its key.

Not here: reading them from a file (``gguf``, ``safetensors``) or what they mean to a model.

Always true: what an accessor returns has the type and range asked for, and every string is valid
Unicode. A JSON null counts as absent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from insitu.weights.errors import ModelFileError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView, Mapping
    from pathlib import Path

D = TypeVar("D")
REQUIRED: Any = object()


class LazyArray(Protocol):
    """An array that stays in the file until it is asked for: ``kind`` is string, integer, ..."""

    @property
    def kind(self) -> str:
        """One of "string", "integer", "number", "boolean"."""
        ...

    def __len__(self) -> int:
        """How many elements."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """All elements; strings as bytes."""
        ...


class Metadata:
    """What a file says of itself. Without a ``default`` a key must be there."""

    def __init__(self, path: Path | str, values: Mapping[str, Any], prefix: str = "") -> None:
        self._path = path
        self._values = values
        self._prefix = prefix

    def keys(self) -> KeysView[str]:
        """Every key, nulls included."""
        return self._values.keys()

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self._values.get(key) is not None

    def fault(self, key: str, message: str) -> ModelFileError:
        """The error to raise about this key's value."""
        return ModelFileError(self._path, f"key {shown(self._prefix + key)[1:-1]}", message)

    def string(self, key: str, default: D = REQUIRED) -> str | D:
        """A string."""
        value = self._values.get(key)
        if value is None:
            return self._absent(key, default)
        return self._text(key, value)

    def integer(
        self,
        key: str,
        default: D = REQUIRED,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | D:
        """An integer of any width, within its range."""
        value = self._values.get(key)
        if value is None:
            return self._absent(key, default)
        if type(value) is not int:
            raise self._wrong(key, value, "an integer")
        self._check_range(key, value, minimum, maximum)
        return value

    def number(
        self,
        key: str,
        default: D = REQUIRED,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float | D:
        """A finite number; integers convert."""
        value = self._values.get(key)
        if value is None:
            return self._absent(key, default)
        number = self._number(key, value)
        self._check_range(key, number, minimum, maximum)
        return number

    def boolean(self, key: str, default: D = REQUIRED) -> bool | D:
        """True or false, never 0 or 1."""
        value = self._values.get(key)
        if value is None:
            return self._absent(key, default)
        if type(value) is not bool:
            raise self._wrong(key, value, "true or false")
        return value

    def strings(self, key: str, default: D = REQUIRED) -> list[str] | D:
        """An array of strings, each valid UTF-8."""
        return list(self.each_string(key)) if self.has(key) else self._absent(key, default)

    def length(self, key: str) -> int:
        """How many strings an array has that must be there."""
        return len(self._given(key))

    def each_string(self, key: str) -> Iterator[str]:
        """The same one after the other, for those who need not hold all."""
        array = self._given(key)
        if isinstance(array, list):
            for index, item in enumerate(array):
                yield self._text(f"{key}[{index}]", item)
            return
        try:
            yield from map(bytes.decode, array)
        except UnicodeDecodeError as error:
            index = next(i for i, item in enumerate(array) if item == error.object)
            wanted = f"{shown(error.object)} is not valid UTF-8"
            raise self.fault(f"{key}[{index}]", wanted) from error

    def integers(
        self,
        key: str,
        default: D = REQUIRED,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> list[int] | D:
        """An array of integers of any width, each within the range."""
        items = self._items(key, "integer")
        if items is None:
            return self._absent(key, default)
        if not set(map(type, items)) <= {int}:
            index = next(i for i, item in enumerate(items) if type(item) is not int)
            raise self._wrong(f"{key}[{index}]", items[index], "an integer")
        if items:
            self._check_range(key, min(items), minimum, None)
            self._check_range(key, max(items), None, maximum)
        return items

    def numbers(self, key: str, default: D = REQUIRED) -> list[float] | D:
        """An array of finite numbers. A typed array of integers is not one."""
        items = self._items(key, "number")
        if items is None:
            return self._absent(key, default)
        if set(map(type, items)) <= {float} and all(map(math.isfinite, items)):
            return items
        return [self._number(f"{key}[{index}]", item) for index, item in enumerate(items)]

    def mapping(self, key: str) -> Metadata | None:
        """A nested object, None where it is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return Metadata(self._path, value, f"{self._prefix}{key}.")

    def merged(self, other: Metadata) -> Metadata:
        """Both objects' keys; one that both have must have one value."""
        for key in self.keys() & other.keys():
            if self.has(key) and other.has(key) and self._values[key] != other._values[key]:
                raise self.fault(key, f"differs from {shown(other._prefix + key)[1:-1]}")
        given = {key: value for key, value in other._values.items() if value is not None}
        return Metadata(self._path, {**self._values, **given}, self._prefix)

    def without(self, key: str) -> Metadata:
        """The same, less one key."""
        kept = {name: value for name, value in self._values.items() if name != key}
        return Metadata(self._path, kept, self._prefix)

    def _absent(self, key: str, default: D) -> D:
        if default is REQUIRED:
            raise self.fault(key, "is missing")
        return default

    def _given(self, key: str) -> LazyArray | list[Any]:
        array = self._array(key, "string")
        if array is None:
            raise self.fault(key, "is missing")
        return array

    def _items(self, key: str, kind: str) -> list[Any] | None:
        array = self._array(key, kind)
        return None if array is None else list(array)

    def _array(self, key: str, kind: str) -> LazyArray | list[Any] | None:
        value = self._values.get(key)
        if value is None or isinstance(value, list):
            return value
        if not hasattr(value, "kind"):
            raise self._wrong(key, value, f"an array of {kind}s")
        array: LazyArray = value
        if array.kind != kind and len(array):
            raise self._wrong(key, value, f"an array of {kind}s")
        return array

    def _text(self, key: str, value: object) -> str:
        if type(value) is not str:
            raise self._wrong(key, value, "a string")
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self.fault(key, "holds an unpaired surrogate") from error
        return value

    def _number(self, key: str, value: object) -> float:
        if type(value) is not int and type(value) is not float:
            raise self._wrong(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.fault(key, "is not a finite number")
        return number

    def _check_range(
        self, key: str, value: float, minimum: float | None, maximum: float | None
    ) -> None:
        if minimum is not None and value < minimum:
            raise self.fault(key, f"is {value:.20g}, below {minimum}")
        if maximum is not None and value > maximum:
            raise self.fault(key, f"is {value:.20g}, above {maximum}")

    def _wrong(self, key: str, value: object, wanted: str) -> ModelFileError:
        if isinstance(value, (list, dict)):
            actual = "an array" if isinstance(value, list) else "an object"
        elif hasattr(value, "kind"):
            actual = f"an array of {value.kind}s"
        else:
            names = {str: "a string", bool: "true or false", int: "an integer", float: "a number"}
            actual = names.get(type(value), "null")
        return self.fault(key, f"must be {wanted}, not {actual}")
