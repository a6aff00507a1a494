"""SHA-256 of a model file, computed once: remembered by path, size, mtime and inode.

Not here: comparing it with what a catalogue pins (``catalog`` does while pulling).

Always true: the table is replaced in one rename; where no cache can be written, the digest is
computed again each time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

from insitu.weights.cache_dir import cache_dir
from insitu.weights.errors import ModelFileError
from insitu.weights.mapped_file import open_regular

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "digests.json"
MAX_TABLE_BYTES = 1 << 20
MAX_ENTRIES = 1000


def file_digest(path: Path, cache: Path | None = None) -> str:
    """The file's SHA-256 in hexadecimal."""
    table = (cache or cache_dir()) / TABLE
    real = os.path.realpath(path)
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        identity = _identity(os.fstat(descriptor))
        known = _read_table(table).get(real)
        if isinstance(known, list) and known[:-1] == identity and _is_digest(known[-1]):
            return str(known[-1])
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        if _identity(os.fstat(descriptor)) != identity:
            raise ModelFileError(path, "file", "was changed while its digest was computed")
    _remember(table, real, [*identity, digest])
    return digest


def _identity(status: os.stat_result) -> list[int]:
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


def _read_table(table: Path) -> dict[str, Any]:
    """What is remembered; nothing where the table is absent or not as it was written."""
    try:
        with table.open("rb") as file:
            entries = json.loads(file.read(MAX_TABLE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


def _remember(table: Path, real: str, entry: list[int | str]) -> None:
    """Put one entry in; two processes at once may lose one of theirs, never the table."""
    with contextlib.suppress(OSError):
        table.parent.mkdir(parents=True, exist_ok=True)
        entries = _read_table(table)
        entries.pop(real, None)
        entries[real] = entry
        kept = dict(list(entries.items())[-MAX_ENTRIES:])
        descriptor, draft = tempfile.mkstemp(dir=table.parent, prefix=f".{TABLE}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(kept, file)
            os.replace(draft, table)
        except BaseException:
            os.unlink(draft)
            raise
