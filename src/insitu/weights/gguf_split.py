"""A GGUF model in several files, ``NAME-00001-of-00003.gguf``: opened as one.

Metadata is the first file's; each says which of how many it is (``split.no``, ``split.count``).

Not here: reading a file (``gguf``). Always true: all files are there, say what their names say, and
no tensor is in two of them.
"""

from __future__ import annotations

import hashlib
import os
import re
from types import MappingProxyType
from typing import TYPE_CHECKING

from insitu.weights.errors import ModelFileError
from insitu.weights.gguf import GGUFFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from insitu.weights.metadata import Metadata
    from insitu.weights.tensors import TensorInfo, TensorSource

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_FILES = 10_000


def open_gguf(path: Path) -> TensorSource:
    """The file, or with its siblings the model it is a part of; any part may be named."""
    file = GGUFFile(path)
    try:
        count = file.metadata.integer("split.count", 1, minimum=0, maximum=MAX_FILES)
        if count <= 1:
            return file
        names = _names(path, count)
    except ModelFileError:
        file.close()
        raise
    file.close()
    return SplitGGUF(path, [path.with_name(name) for name in names])


def first_of_split(names: Sequence[str]) -> str | None:
    """The first file, where these are all the files of one split model."""
    matches = [_NAME.fullmatch(name) for name in names]
    kinds = {(match[1], match[3]) if match else None for match in matches}
    if len(kinds) != 1 or None in kinds:
        return None
    return min(names)


def _names(path: Path, count: int) -> list[str]:
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        wanted = f"NAME-00001-of-{count:05}.gguf and so on"
        message = f"says that the model is {count} files, which are to be called {wanted}"
        raise ModelFileError(path, "key split.count", message)
    return [f"{match[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


class SplitGGUF:
    """The files of one model: a ``TensorSource``."""

    format = "gguf"

    def __init__(self, path: Path, files: Sequence[Path]) -> None:
        self.path = path
        self._files: list[GGUFFile] = []
        self._file_of: dict[str, GGUFFile] = {}
        tensors: dict[str, TensorInfo] = {}
        try:
            for number, name in enumerate(files):
                self._files.append(_part(path, name, number, len(files)))
                self._add(self._files[-1], tensors)
            _check_number(self._files[0], len(tensors))
        except ModelFileError:
            self.close()
            raise
        self.metadata: Metadata = self._files[0].metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.size_bytes = sum(file.size_bytes for file in self._files)

    def _add(self, file: GGUFFile, tensors: dict[str, TensorInfo]) -> None:
        for name, info in file.tensors.items():
            if name in tensors:
                other = self._file_of[name].path.name
                raise ModelFileError(file.path, f"tensor {name}", f"is in {other} as well")
            tensors[name] = info
            self._file_of[name] = file

    def read(self, name: str) -> memoryview:
        """A tensor's raw blocks: a read-only view of the mapped file that has it."""
        return self._file_of.get(name, self._files[0]).read(name)

    def raw_pairs(self) -> dict[str, bytes]:
        """The first file's pairs, as they stand there."""
        return self._files[0].raw_pairs()

    def file(self, name: str) -> bytes | None:
        """Nothing: GGUF files have no others beside them."""
        return None

    def digest(self) -> str:
        """SHA-256 of the files' own digests, a line each in their order."""
        lines = "".join(f"{file.digest()}\n" for file in self._files)
        return hashlib.sha256(lines.encode()).hexdigest()

    def close(self) -> None:
        """Let go of the files; views already handed out stay valid."""
        for file in self._files:
            file.close()


def _part(model: Path, path: Path, number: int, count: int) -> GGUFFile:
    if not os.path.lexists(path):
        raise ModelFileError(
            model, "key split.count", f"{count} files, of which {path.name} is not here"
        )
    file = GGUFFile(path)
    told = file.metadata.integer("split.no", 0), file.metadata.integer("split.count", 1)
    if told != (number, count):
        file.close()
        message = f"is file {told[0] + 1} of {told[1]}, not {number + 1} of {count}"
        raise ModelFileError(path, "key split.no", message)
    return file


def _check_number(first: GGUFFile, num_tensors: int) -> None:
    told = first.metadata.integer("split.tensors.count", num_tensors)
    if told != num_tensors:
        message = f"is {told}, but the files hold {num_tensors} tensors: one is of another model"
        raise ModelFileError(first.path, "key split.tensors.count", message)
