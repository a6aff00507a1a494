"""A safetensors file, or the Hugging Face folder around one or several, read without trust.

Not here: a file's header (``safetensors_header``), what config.json means (``models``), or weights
packed by other quantisers (``prequantized``).

Always true: only regular files inside the folder are read, and no tensor is in two of them. One
allowance: in a hub cache, ``models--x/snapshots/<revision>``, a member may be a symlink to
``models--x/blobs/<file>``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from insitu.kernels.blocks import FLOATS, BlockType
from insitu.weights import digest
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown
from insitu.weights.mapped_file import MappedFile, read_bounded
from insitu.weights.metadata import Metadata
from insitu.weights.safetensors_header import Entry, read_header
from insitu.weights.strict_json import parse_object
from insitu.weights.tensors import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_MEMBER_BYTES = 64 << 20  # the tokenizer.json of a vocabulary of 262k takes half of it
MAX_FILES = 10_000


class SafetensorsFile:
    """Open safetensors files, with their folder's other files if any: a ``TensorSource``.

    ``entries`` are all tensors; ``tensors`` those of float types, which is what a model reads.
    """

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder, self._weights = _folder_and_weights(path)
        config = self.file(CONFIG)
        values = {} if config is None else parse_object(path / CONFIG, "file", config)
        self.metadata = Metadata(path / CONFIG if path != self._weights[0] else path, values)
        self._files: list[MappedFile] = []
        self._file_of: dict[str, MappedFile] = {}
        entries: dict[str, Entry] = {}
        try:
            for weights in self._weights:
                self._files.append(MappedFile(weights))
                self._add(self._files[-1], entries)
        except ModelFileError:
            self.close()
            raise
        self.size_bytes = sum(file.size_bytes for file in self._files)
        self.entries: Mapping[str, Entry] = MappingProxyType(entries)
        infos = (_info(entry) for entry in entries.values())
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {info.name: info for info in infos if info is not None}
        )

    def _add(self, file: MappedFile, entries: dict[str, Entry]) -> None:
        for name, entry in read_header(file.path, file.view).items():
            if name in entries:
                other = self._file_of[name].path.name
                raise ModelFileError(file.path, f"tensor {name}", f"is in {other} as well")
            entries[name] = entry
            self._file_of[name] = file

    def require_floats(self) -> None:
        """Refuse tensors that only another quantiser's configuration could explain."""
        for name, entry in self.entries.items():
            if name not in self.tensors:
                where = f"dtype of tensor {name}"
                message = f"{entry.dtype} is not supported without a quantization_config"
                raise UnsupportedModelError(self._file_of[name].path, where, message)

    def read(self, name: str) -> memoryview:
        """A tensor's raw bytes: a read-only view of the mapped file."""
        entry = self.entries.get(name)
        if entry is None:
            raise ModelFileError(self.path, f"tensor {shown(name)[1:-1]}", "is missing")
        return self._file_of[name].view[entry.offset : entry.offset + entry.num_bytes]

    def file(self, name: str) -> bytes | None:
        """Another file of the folder, None where there is none."""
        if self._folder is None:
            return None
        _require_plain(self._folder, name)
        if not os.path.lexists(self._folder / name):
            return None
        limit = MAX_CONFIG_BYTES if name == CONFIG else MAX_MEMBER_BYTES
        return read_bounded(member(self._folder, name), limit)

    def digest(self) -> str:
        """SHA-256 of the file that holds the weights; of several, of their own, a line each."""
        digests = [digest.file_digest(weights) for weights in self._weights]
        if len(digests) == 1:
            return digests[0]
        return hashlib.sha256("".join(f"{one}\n" for one in digests).encode()).hexdigest()

    def close(self) -> None:
        """Let go of the files; views already handed out stay valid."""
        for file in self._files:
            file.close()


def member(folder: Path, name: str) -> Path:
    """The real path of a folder's file; refused if it leaves the folder (one allowance above)."""
    _require_plain(folder, name)
    try:
        real = Path(os.path.realpath(folder / name, strict=True))
        home = Path(os.path.realpath(folder, strict=True))
    except OSError as error:
        raise ModelFileError(
            folder / name, "file", f"cannot be opened: {error.strerror}"
        ) from error
    is_blob = home.parent.name == "snapshots" and real.parent == home.parent.parent / "blobs"
    if not real.is_relative_to(home) and not is_blob:
        raise ModelFileError(folder / name, "file", "is a link that leaves the model folder")
    return real


def _info(entry: Entry) -> TensorInfo | None:
    if entry.dtype not in FLOATS:
        return None
    kind = BlockType(entry.dtype)
    return TensorInfo(entry.name, entry.shape, kind, entry.num_bytes, entry.offset)


def _require_plain(folder: Path, name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise ModelFileError(folder, "file name", f"{shown(name)} is not a plain file name")


def _folder_and_weights(path: Path) -> tuple[Path | None, list[Path]]:
    """The folder with a config.json, None for a lone file; and the files of the weights."""
    if not path.is_dir():
        has_config = os.path.lexists(path.parent / CONFIG)
        return (path.parent if has_config else None), [path]
    has_weights, has_index = (os.path.lexists(path / name) for name in (WEIGHTS, INDEX))
    if not has_weights and not has_index:
        raise ModelFileError(path, "folder", f"holds no {WEIGHTS}")
    if not os.path.lexists(path / CONFIG):
        raise ModelFileError(path, "folder", f"holds no {CONFIG}")
    if has_weights:
        return path, [member(path, WEIGHTS)]
    return path, [member(path, name) for name in _shards(path)]


def _shards(folder: Path) -> list[str]:
    """The files that the index names, in order; which tensor is where the files say themselves."""
    path = folder / INDEX
    index = parse_object(path, "file", read_bounded(member(folder, INDEX), MAX_INDEX_BYTES))
    names = index.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelFileError(path, "weight_map", "is not an object of tensors' files")
    if not all(isinstance(name, str) for name in names.values()):
        raise ModelFileError(path, "weight_map", "names a file by something that is no text")
    files = sorted(set(names.values()))
    if len(files) > MAX_FILES:
        raise ModelFileError(path, "weight_map", f"names {len(files)} files, above {MAX_FILES}")
    return files
