"""Copy a model file or folder of this machine: regular files alone, of a folder those at its top.

Not here: digests (``store.verify``). Always true: a device, a FIFO or a folder in a file's place is
refused before it is opened, and a link is followed to a regular file only.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from insitu.catalog.errors import BadSourceError

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.catalog.progress import Progress

CHUNK_BYTES = 1 << 20
MAX_FOLDER_FILES = 1000


def fetch(source: Path, staging: Path, progress: Progress) -> None:
    """Put the file, or the folder's files, into ``staging``; folders within it are left out."""
    if not source.is_dir():
        _copy(source, staging / source.name, progress)
        return
    names = sorted(name for name in os.listdir(source) if not name.startswith("."))
    files = [source / name for name in names if not (source / name).is_dir()]
    if len(files) > MAX_FOLDER_FILES:
        raise BadSourceError(f"{source} holds {len(files)} files: it is no model's folder.")
    for path in files:
        _require_regular(path)
    for path in files:
        _copy(path, staging / path.name, progress)


def _require_regular(path: Path) -> int:
    """The size of a regular file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise BadSourceError(f"{path} is not a regular file.")
    return status.st_size


def _copy(path: Path, target: Path, progress: Progress) -> None:
    left = _require_regular(path)
    progress.begin(f"copying {path.name}", left)
    done = 0
    with path.open("rb") as file, target.open("xb") as out:
        while left and (chunk := file.read(min(left, CHUNK_BYTES))):
            out.write(chunk)
            left -= len(chunk)
            done += len(chunk)
            progress.at(done)
