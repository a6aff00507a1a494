"""Read the header of one safetensors file without trusting it.

    header length u64   header: JSON {name: {dtype, shape, data_offsets: [begin, end]}}   data

Not here: folders (``safetensors``). Always true: the tensors cover the data from first to last
byte, each once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.weights.errors import ModelFileError, shown
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from pathlib import Path

MAX_HEADER_BYTES = 4 << 20
MAX_TENSORS = 1 << 15
MAX_DIMS = 8

# Bytes an element of every dtype of the format.
DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; ``offset`` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int


def read_header(path: Path, data: memoryview) -> dict[str, Entry]:
    """Every tensor of the file by name."""
    where = "header length at offset 0"
    if len(data) < 8:
        raise ModelFileError(path, where, f"needs 8 bytes, with {len(data)} left")
    if bytes(data[:4]) == b"GGUF":
        raise ModelFileError(
            path, "magic at offset 0", "is a GGUF file, not safetensors: rename it"
        )
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


def _read_entry(path: Path, name: str, entry: Any, base: int) -> Entry:
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
    return Entry(name, dtype, tuple(shape), num_bytes, base + offsets[0])


def _naturals(path: Path, where: str, values: Any, maximum: int) -> list[int]:
    """A list of at most ``maximum`` whole numbers that fit in 64 bits."""
    is_list = isinstance(values, list) and len(values) <= maximum
    if not is_list or not all(type(value) is int and 0 <= value < 1 << 63 for value in values):
        raise ModelFileError(path, where, f"must be up to {maximum} whole numbers of 63 bits")
    return list(values)


def _check_cover(path: Path, infos: list[Entry], base: int, end: int) -> None:
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
