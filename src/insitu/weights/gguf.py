"""Read a GGUF file (version 2 or 3, little-endian) without trusting it.

    "GGUF"  version u32  num_tensors u64  num_pairs u64
    num_pairs   x  key string, type u32, value
    num_tensors x  name string, num_dims u32, dims u64 (innermost first), type u32, offset u64
    padding to the alignment
    tensor data, each at its offset from here

Not here: names that families give tensors (``models``), or what keys mean.

Always true: every tensor lies wholly inside the file, on its alignment, and overlaps no other.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from insitu.kernels.blocks import BlockType
from insitu.weights import digest
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown
from insitu.weights.gguf_cursor import Cursor
from insitu.weights.mapped_file import MappedFile
from insitu.weights.metadata import Metadata
from insitu.weights.tensors import TensorInfo, read_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = (1 << 16) - 1
MAX_NAME_BYTES = 256
MAX_DIMS = 4
MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # a key of one letter, a type, a value of one byte
MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8

# Every tensor type the format numbers, so that one that is not read here is refused by its name.
TYPE_NAMES: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
BLOCK_TYPES = {
    number: BlockType(name) for number, name in TYPE_NAMES.items() if name in set(BlockType)
}


class GGUFFile:
    """An open GGUF file, whole or one of a split model: a ``TensorSource``."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        self.size_bytes = self._file.size_bytes
        try:
            cursor = Cursor(path, self._file.view)
            num_tensors, num_pairs = _read_counts(path, cursor)
            values, self._spans = _read_pairs(cursor, num_pairs)
            self.metadata = Metadata(path, values)
            alignment = _alignment(self.metadata)
            tensors = _read_tensors(path, cursor, num_tensors, alignment)
            _check_apart(path, tensors, self.size_bytes)
        except ModelFileError:
            self._file.close()
            raise
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)

    def read(self, name: str) -> memoryview:
        """A tensor's raw blocks: a read-only view of the mapped file."""
        return read_tensor(self.path, self._file.view, self.tensors, name)

    def raw_pairs(self) -> dict[str, bytes]:
        """Key and value of each pair of the metadata, as they stand in the file."""
        return {key: bytes(self._file.view[span]) for key, span in self._spans.items()}

    def file(self, name: str) -> bytes | None:
        """Nothing: a GGUF file is alone."""
        return None

    def digest(self) -> str:
        """SHA-256 of the file, computed once and cached."""
        return digest.file_digest(self.path)

    def close(self) -> None:
        """Let go of the file; views already handed out stay valid."""
        self._file.close()


def _read_counts(path: Path, cursor: Cursor) -> tuple[int, int]:
    """Check magic and version; return num_tensors, num_pairs."""
    magic = cursor.u32("magic")
    if magic != int.from_bytes(MAGIC, "little"):
        raise ModelFileError(path, "magic at offset 0", "is not GGUF")
    version = cursor.u32("version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in {1, *VERSIONS}:
            message = "other byte order: this file is big-endian, insitu reads little-endian"
        else:
            message = f"GGUF version {version} is not supported, only 2 and 3"
        raise UnsupportedModelError(path, "version at offset 4", message)
    num_tensors = cursor.count("tensor count", MIN_TENSOR_BYTES, MAX_TENSORS)
    num_pairs = cursor.count("key count", MIN_PAIR_BYTES, MAX_PAIRS)
    return num_tensors, num_pairs


def _read_pairs(cursor: Cursor, num_pairs: int) -> tuple[dict[str, Any], dict[str, slice]]:
    """Every key's value, and the bytes that the pair takes."""
    values: dict[str, Any] = {}
    spans: dict[str, slice] = {}
    for index in range(num_pairs):
        start = cursor.at
        key = cursor.name(f"key {index}", MAX_KEY_BYTES)
        if key in values:
            cursor.at = start
            cursor.fail(f"key {index}", f"{shown(key)} is there twice")
        values[key] = cursor.value(key)
        spans[key] = slice(start, cursor.at)
    return values, spans


def _alignment(metadata: Metadata) -> int:
    """The alignment of tensor data."""
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise metadata.fault(
            "general.alignment", f"is {alignment}, not a power of two from 8 to {MAX_ALIGNMENT}"
        )
    return alignment


def _read_tensors(
    path: Path, cursor: Cursor, num_tensors: int, alignment: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        start = cursor.at
        info = _read_tensor(path, cursor, index, alignment)
        if info.name in tensors:
            cursor.at = start
            cursor.fail(f"tensor {index}", f"{shown(info.name)} is there twice")
        tensors[info.name] = info
    # Offsets count from the first multiple of the alignment after the header.
    base = -(-cursor.at // alignment) * alignment
    return {
        name: TensorInfo(name, info.shape, info.block_type, info.num_bytes, base + info.offset)
        for name, info in tensors.items()
    }


def _read_tensor(path: Path, cursor: Cursor, index: int, alignment: int) -> TensorInfo:
    """One entry; its offset still counts from the start of tensor data."""
    name = cursor.name(f"name of tensor {index}", MAX_NAME_BYTES)
    field = f"tensor {name}"
    num_dims = cursor.u32(f"dimensions of {field}")
    if not 1 <= num_dims <= MAX_DIMS:
        cursor.at -= 4
        cursor.fail(f"dimensions of {field}", f"are {num_dims}, not 1 to {MAX_DIMS}")
    num_weights, dims = 1, []
    for _ in range(num_dims):
        dims.append(cursor.u64(f"dimension of {field}"))
        num_weights *= dims[-1]
        if not 0 < num_weights < 1 << 63:
            cursor.at -= 8
            cursor.fail(f"dimension of {field}", f"{dims[-1]} gives {num_weights} weights")
    block_type = _block_type(path, cursor, field)
    if dims[0] % block_type.block_size:
        cursor.fail(field, f"has rows of {dims[0]}, not whole {block_type} blocks")
    offset = cursor.u64(f"offset of {field}")
    if offset % alignment:
        cursor.at -= 8
        cursor.fail(f"offset of {field}", f"{offset} is not a multiple of {alignment}")
    num_bytes = num_weights // block_type.block_size * block_type.block_bytes
    return TensorInfo(name, tuple(reversed(dims)), block_type, num_bytes, offset)


def _block_type(path: Path, cursor: Cursor, field: str) -> BlockType:
    at = cursor.at
    number = cursor.u32(f"type of {field}")
    block_type = BLOCK_TYPES.get(number)
    if block_type is None:
        where = f"type of {field} at offset {at}"
        if number not in TYPE_NAMES:
            raise ModelFileError(path, where, f"{number} is not a tensor type")
        message = f"{TYPE_NAMES[number]} (type {number}) is not supported yet"
        raise UnsupportedModelError(path, where, message)
    return block_type


def _check_apart(path: Path, tensors: Mapping[str, TensorInfo], size_bytes: int) -> None:
    """Every tensor inside the file and before the next one begins."""
    before: TensorInfo | None = None
    for info in sorted(tensors.values(), key=lambda info: info.offset):
        where = f"tensor {info.name} at offset {info.offset}"
        if info.offset + info.num_bytes > size_bytes:
            message = f"needs {info.num_bytes} bytes, with {max(0, size_bytes - info.offset)} left"
            raise ModelFileError(path, where, message)
        end = 0 if before is None else before.offset + before.num_bytes
        if before is not None and end > info.offset:
            raise ModelFileError(path, where, f"overlaps tensor {before.name}, which ends at {end}")
        before = info
