"""The models folder: one folder a model, made by one rename, so that half a model is never seen.

    <models_dir>/<name>/<file>            one model file, or a model folder's files
    <models_dir>/<name>/.insitu.json      where it came from, its size and digest
    <models_dir>/.work/<name>/            staging and unfinished downloads of that name
    <models_dir>/.locks/<name>.lock       held while that name is pulled or removed

Not here: where the bytes come from. Always true: a name is safe as a file name, and whatever is
under ``<models_dir>/<name>`` was verified before the rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from insitu.catalog.errors import BadSourceError, NotPulledError, WrongDigestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from insitu.catalog.progress import Progress

RECORD = ".insitu.json"
SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a pulled model; ``file`` is None for a folder of files."""

    name: str
    source: str
    file: str | None
    size_bytes: int
    sha256: str


def checked_name(name: str) -> str:
    """The name, if it can be the name of a folder on every system and cannot leave its parent."""
    if not SAFE_NAME.fullmatch(name) or name.endswith("."):
        raise BadSourceError(
            f"{name!r} cannot name a model: use up to 100 of A-Z a-z 0-9 . _ - and begin with a "
            "letter or digit (give another with --name)."
        )
    return name


def sha256_of(path: Path, told: Callable[[int], None] = lambda _: None) -> str:
    """The file's SHA-256 in hexadecimal, telling how many bytes are read."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            told(done)
    return digest.hexdigest()


def verify(path: Path, size_bytes: int | None, sha256: str | None, progress: Progress) -> str:
    """Check size and digest where they are known; return the digest."""
    actual_size = path.stat().st_size
    if size_bytes is not None and actual_size != size_bytes:
        raise WrongDigestError(
            f"{path.name}: {actual_size} bytes arrived, {size_bytes} were pinned."
        )
    progress.begin(f"verifying {path.name}", actual_size)
    actual = sha256_of(path, progress.at)
    if sha256 is not None and actual != sha256:
        raise WrongDigestError(
            f"{path.name}: its SHA-256 is {actual}, pinned is {sha256}. Nothing was kept."
        )
    return actual


class Store:
    """One models folder, and everything that is done to it."""

    def __init__(self, models_dir: Path) -> None:
        self.models_dir = models_dir

    def path(self, name: str) -> Path:
        """The folder of a model, whether it exists or not."""
        return self.models_dir / checked_name(name)

    def work(self, name: str) -> Path:
        """Where a pull of that name keeps unfinished downloads; used under the lock only."""
        return self.models_dir / ".work" / checked_name(name)

    def record(self, name: str) -> Record | None:
        """What is known of a pulled model, None if it is not there or was put there by hand."""
        try:
            values = json.loads((self.path(name) / RECORD).read_text("utf-8"))
            return Record(**values)
        except (OSError, ValueError, TypeError):
            return None

    def model_path(self, record: Record) -> Path:
        """What is to be loaded: the file, or the folder of a model kept as files."""
        folder = self.path(record.name)
        return folder if record.file is None else folder / record.file

    def records(self) -> Iterator[Record]:
        """Every pulled model, by name."""
        names = (
            sorted(p.name for p in self.models_dir.iterdir()) if self.models_dir.is_dir() else []
        )
        for name in names:
            if SAFE_NAME.fullmatch(name) and (record := self.record(name)) is not None:
                yield record

    @contextlib.contextmanager
    def locked(self, name: str, progress: Progress) -> Iterator[None]:
        """Hold the name against other processes; say so once when another one holds it."""
        path = self.models_dir / ".locks" / f"{checked_name(name)}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.note(f"another process is pulling {name}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield  # closing the file lets go, and so does the end of the process

    def staging(self, name: str) -> Path:
        """A fresh, empty folder to assemble the model in."""
        staging = self.work(name) / "staging"
        if staging.exists():
            shutil.rmtree(staging)
        staging.mkdir(parents=True)
        return staging

    def publish(self, staging: Path, record: Record) -> Path:
        """Write everything through to the disk, then make it visible in one rename."""
        write_record(staging, record)
        for path in (*staging.rglob("*"), staging):
            _fsync(path)
        target = self.path(record.name)
        os.rename(staging, target)
        _fsync(self.models_dir)
        shutil.rmtree(self.work(record.name), ignore_errors=True)
        return self.model_path(record)

    def remove(self, name: str, progress: Progress) -> None:
        """Forget a model: gone in one rename, then deleted, unfinished downloads with it."""
        folder = self.path(name)
        if not folder.is_dir() and not self.work(name).is_dir():
            raise NotPulledError(
                f"{name} is not in {self.models_dir} (`insitu list` shows what is)."
            )
        with self.locked(name, progress):
            trash = self.work(name) / "removed"
            trash.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.rename(folder, trash)
            shutil.rmtree(self.work(name), ignore_errors=True)


def write_record(folder: Path, record: Record) -> None:
    """Put the record beside the model, whole or not at all."""
    draft = folder / f"{RECORD}.draft"
    draft.write_text(json.dumps(asdict(record), indent=1) + "\n", "utf-8")
    os.replace(draft, folder / RECORD)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
