"""Open regular files only, and map one read-only.

Not here: what the bytes mean. Always true: a FIFO, device, folder or symlink loop is refused before
anything is read, so opening never blocks; a view never reaches beyond the size at opening.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import TYPE_CHECKING

from insitu.weights.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path


def open_regular(path: Path) -> int:
    """A descriptor of a regular file, or the reason why not."""
    try:
        # Asked before opening, for opening a device can have effects; and of the descriptor after.
        _require_regular(path, os.stat(path).st_mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelFileError(path, "file", f"cannot be opened: {reason}") from error
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except ModelFileError:
        os.close(descriptor)
        raise
    return descriptor


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """All bytes of a regular file that has at most ``max_bytes``."""
    descriptor = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > max_bytes:
            raise ModelFileError(path, "file", f"has {size_bytes} bytes, above {max_bytes}")
        return file.read(max_bytes)


class MappedFile:
    """A regular file, mapped read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = open_regular(path)
        try:
            self.size_bytes = os.fstat(descriptor).st_size
            if self.size_bytes == 0:
                raise ModelFileError(path, "file", "is empty")
            self._map = mmap.mmap(descriptor, self.size_bytes, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFileError(path, "file", f"cannot be mapped: {error}") from error
        finally:
            os.close(descriptor)
        self.view = memoryview(self._map)

    def close(self) -> None:
        """Unmap; where views are still held the mapping goes with the last of them."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            return


def _require_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise ModelFileError(path, "file", f"is {kind}")
