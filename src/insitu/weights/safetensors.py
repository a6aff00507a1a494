"""Read a safetensors file, and the Hugging Face folder around it, without trusting them.

    header length u64   header: JSON {name: {dtype, shape, data_offsets: [begin, end]}}   data

Not here: sharded checkpoints (refused by name) or what config.json means (``models``).

Always true: the tensors cover the data from first to last byte, each once; only regular files
inside the folder are read. One allowance: in a hub cache, ``models--x/snapshots/<revision>``, a
member may be a symlink to ``models--x/blobs/<file>``.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from insitu.kernels.blocks import BlockType
from insitu.weights import digest
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown
from insitu.weights.mapped_file import MappedFile, read_bounded
from insitu.weights.metadata import Metadata
from insitu.weights.strict_json import parse_object
from insitu.weights.tensors import TensorInfo, read_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 1 << 15
MAX_DIMS = 8
MAX_CONFIG_BYTES = 1 << 20
MAX_MEMBER_BYTES = 64 << 20  # the tokenizer.json of a vocabulary of 262k takes half of it

# Bytes an element of every dtype of the format; those that are no BlockType are refused by name.
DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


class SafetensorsFile:
    """An open safetensors file, with its folder's other files if any: a ``TensorSource``."""

    format = "safetensors"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder, weights = _folder_and_weights(path)
        self._weights = weights
        config = self.file(CONFIG)
        values = {} if config is None else parse_object(path / CONFIG, "file", config)
        self.metadata = Metadata(path / CONFIG if path != weights else path, values)
        self._file = MappedFile(weights)
        self.size_bytes = self._file.size_bytes
        try:
            tensors = _read_header(weights, self._file.view)
        except ModelFileError:
            self._file.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    def read(self, name: str) -> memoryview:
        """A tensor's raw bytes: a read-only view of the mapped file."""
        return read_tensor(self.path, self._file.view, self.tensors, name)

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
        """SHA-256 of the file that holds the weights, computed once and cached."""
        return digest.file_digest(self._weights)

    def close(self) -> None:
        """Let go of the file; views already handed out stay valid."""
        self._file.close()


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


def _require_plain(folder: Path, name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise ModelFileError(folder, "file name", f"{shown(name)} is not a plain file name")


def _folder_and_weights(path: Path) -> tuple[Path | None, Path]:
    """The folder with a config.json, None for a lone file; and the file of the weights."""
    if not path.is_dir():
        has_config = os.path.lexists(path.parent / CONFIG)
        return (path.parent if has_config else None), path
    if not os.path.lexists(path / WEIGHTS):
        if os.path.lexists(path / INDEX):
            message = "is a sharded checkpoint, which is not supported yet"
            raise UnsupportedModelError(path, INDEX, message)
        raise ModelFileError(path, "folder", f"holds no {WEIGHTS}")
    if not os.path.lexists(path / CONFIG):
        raise ModelFileError(path, "folder", f"holds no {CONFIG}")
    return path, member(path, WEIGHTS)


def _read_header(path: Path, data: memoryview) -> dict[str, TensorInfo]:
    where = "header length at offset 0"
    if len(data) < 8:
        raise ModelFileError(path, where, f"needs 8 bytes, with {len(data)} left")
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise ModelFileError(path, where, f"is {length}, with {len(data) - 8} bytes left")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(path, where, f"is {length}, above {MAX_HEADER_BYTES}")
    raw = bytes(data[8 : 8 + length])
    where = "header at offset 8"
    if not raw.startswith(b"{"):
        raise ModelFileError(path, where, "is not a JSON object")
    # Counted before parsing, for a small text can become large objects.
    if raw.count(b"{") > MAX_TENSORS + 2 or raw.count(b"[") > 2 * MAX_TENSORS + 2:
        raise ModelFileError(path, where, f"holds more than {MAX_TENSORS} tensors")
    entries = parse_object(path, where, raw)
    notes = entries.pop("__metadata__", {})
    if not isinstance(notes, dict) or not all(isinstance(note, str) for note in notes.values()):
        raise ModelFileError(path, where, "__metadata__ is not an object of strings")
    infos = [_read_entry(path, name, entry, 8 + length) for name, entry in entries.items()]
    _check_cover(path, infos, 8 + length, len(data))
    return {info.name: info for info in infos}


def _read_entry(path: Path, name: str, entry: Any, base: int) -> TensorInfo:
    where = f"tensor {shown(name)[1:-1]}"
    if not name or not name.isprintable():
        raise ModelFileError(path, where, "is not a name")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelFileError(path, where, "must have dtype, shape and data_offsets, nothing else")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelFileError(path, f"dtype of {where}", f"{shown(str(dtype))} is not a dtype")
    shape = _naturals(path, f"shape of {where}", entry["shape"], MAX_DIMS)
    offsets = _naturals(path, f"data_offsets of {where}", entry["data_offsets"], 2)
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelFileError(path, f"data_offsets of {where}", "are not a begin and an end")
    num_bytes = DTYPES[dtype]
    for size in shape:
        num_bytes *= size
    if num_bytes != offsets[1] - offsets[0]:
        message = f"span {offsets[1] - offsets[0]} bytes, shape and dtype take {num_bytes:.20g}"
        raise ModelFileError(path, f"data_offsets of {where}", message)
    if dtype not in set(BlockType):
        raise UnsupportedModelError(path, f"dtype of {where}", f"{dtype} is not supported yet")
    return TensorInfo(name, tuple(shape), BlockType(dtype), num_bytes, base + offsets[0])


def _naturals(path: Path, where: str, values: Any, maximum: int) -> list[int]:
    """A list of at most ``maximum`` whole numbers that fit in 64 bits."""
    is_list = isinstance(values, list) and len(values) <= maximum
    if not is_list or not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
        raise ModelFileError(path, where, f"must be up to {maximum} whole numbers of 63 bits")
    return list(values)


def _check_cover(path: Path, infos: list[TensorInfo], base: int, end: int) -> None:
    """Tensors follow each other without hole or overlap, from the header to the end of the file."""
    at = base
    for info in sorted(infos, key=lambda info: (info.offset, info.num_bytes)):
        if info.offset != at:
            what = (
                "overlaps the tensor before it" if info.offset < at else "leaves a hole before it"
            )
            raise ModelFileError(path, f"tensor {info.name} at offset {info.offset}", what)
        at += info.num_bytes
    if at != end:
        message = f"tensors end at {at}, the file at {end}"
        raise ModelFileError(path, f"data at offset {min(at, end)}", message)
