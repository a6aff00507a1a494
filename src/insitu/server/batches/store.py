"""Files and states of batches on disk: a folder for each tenant, names that are ours alone.

Not here: what a batch does (``runner``). Always true: no text of a client becomes part of a path; a
state is replaced whole or not at all; what a tenant's folder does not hold is not there for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ID = re.compile(r"(?:file-|batch_)[0-9a-f]{32}")


def new_id(prefix: str) -> str:
    """An id nobody had before; ids sort by when they were made."""
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"


class BatchFolderUnusable(Exception):
    """The folder for batches cannot be made or written, or another server uses it."""


class Store:
    """All that is kept. One process at a time may use a folder."""

    def __init__(self, folder: Path) -> None:
        """Make the folder where there is none, and take it."""
        self._folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise BatchFolderUnusable(f"{folder} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise BatchFolderUnusable(f"{folder} is used by another server") from error

    def close(self) -> None:
        """Let another process have the folder."""
        os.close(self._lock)

    def room_of(self, tenant: str | None) -> Room:
        """What a tenant keeps."""
        # Without keys there is one room; no tenant's name can have its folder's name.
        name = "all" if tenant is None else hashlib.sha256(tenant.encode()).hexdigest()
        return Room(self._folder / name, tenant)

    def rooms(self) -> Iterator[Room]:
        """Every tenant's, as far as they kept anything."""
        for folder in sorted(self._folder.iterdir()):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield Room(folder, json.loads((folder / "tenant").read_text())["tenant"])


class Room:
    """One tenant's files and batches."""

    def __init__(self, folder: Path, tenant: str | None) -> None:
        self._folder = folder
        self.tenant = tenant

    def content_path(self, file_id: str) -> Path:
        """Where a file's bytes are, or will be."""
        assert _ID.fullmatch(file_id)
        self._make()
        return self._folder / f"{file_id}.jsonl"

    def save(self, kept_id: str, state: dict[str, Any]) -> None:
        """Replace the state of a file or batch."""
        assert _ID.fullmatch(kept_id)
        self._make()
        path = self._folder / f"{kept_id}.json"
        write_whole(path, json.dumps(state).encode())

    def load(self, kept_id: str) -> dict[str, Any] | None:
        """The state of a file or batch; None where there is none of that id."""
        if not _ID.fullmatch(kept_id):
            return None
        try:
            state = json.loads((self._folder / f"{kept_id}.json").read_bytes())
        except FileNotFoundError:
            return None
        assert isinstance(state, dict)
        return state

    def ids(self, prefix: str) -> list[str]:
        """All ids that begin so, the oldest first."""
        return sorted(path.stem for path in self._folder.glob(f"{prefix}*.json"))

    def delete(self, file_id: str) -> None:
        """Forget a file: its state first, so that what is half gone is not there."""
        assert _ID.fullmatch(file_id)
        for ending in ("json", "jsonl"):
            (self._folder / f"{file_id}.{ending}").unlink(missing_ok=True)
        _sync_folder(self._folder)

    def _make(self) -> None:
        if not self._folder.exists():
            self._folder.mkdir(mode=0o700)
            write_whole(self._folder / "tenant", json.dumps({"tenant": self.tenant}).encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that after a crash it is the old one or the new one."""
    beside = path.with_name(f"{path.name}.new")
    with open_private(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    _sync_folder(path.parent)


def open_private(path: Path, flags: int) -> Any:
    """Open a file that only this user may read."""
    mode = "r+b" if flags & os.O_RDWR else "wb"
    return os.fdopen(os.open(path, flags, 0o600), mode)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
