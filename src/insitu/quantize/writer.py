"""Write a GGUF file tensor by tensor, in any order, and go on where an earlier run was stopped.

Until it is whole the file is ``NAME.partial``; beside it ``NAME.partial.json`` says which tensors
are in it, and of which run they are.

Not here: what is written. Always true: NAME appears in one rename, whole.
"""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from insitu.quantize.layout import ALIGNMENT
from insitu.weights.gguf import MAGIC, TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from insitu.quantize.layout import Target

VERSION = 3
_U32, _STRING = 4, 8
_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}
# general.file_type, by the type of most weights.
_FILE_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q4_K": 14, "Q5_K": 16,
    "Q6_K": 18,
}  # fmt: skip


class PartialFile:
    """The file on its way; a context that leaves it resumable when left by an error."""

    def __init__(
        self, path: Path, header: bytes, targets: Iterable[Target], identity: Mapping[str, str]
    ) -> None:
        self._path = path
        self._draft = path.with_name(f"{path.name}.partial")
        self._journal = path.with_name(f"{path.name}.partial.json")
        self._targets = {target.name: target for target in targets}
        self._base = len(header)
        self._identity = dict(identity)
        end = max((t.offset + t.num_bytes for t in self._targets.values()), default=0)
        self._size = self._base + -(-end // ALIGNMENT) * ALIGNMENT
        self.done: dict[str, Any] = self._resumed()
        if not self.done:
            self._draft.write_bytes(header)
        self._file = self._draft.open("r+b")
        self._file.truncate(self._size)

    def __enter__(self) -> PartialFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._draft, self._path)
            self._journal.unlink(missing_ok=True)

    def write(self, name: str, blocks: bytes | memoryview, note: Any) -> None:
        """One tensor; ``note`` is kept with its name."""
        target = self._targets[name]
        assert len(blocks) == target.num_bytes, f"{name}: {len(blocks)} of {target.num_bytes} bytes"
        self._file.seek(self._base + target.offset)
        self._file.write(blocks)
        self._file.flush()
        self.done[name] = note
        draft = self._journal.with_suffix(".new")
        draft.write_text(json.dumps({"identity": self._identity, "done": self.done}))
        os.replace(draft, self._journal)

    def read(self, name: str) -> bytes:
        """A tensor that was written."""
        target = self._targets[name]
        self._file.seek(self._base + target.offset)
        return self._file.read(target.num_bytes)

    def _resumed(self) -> dict[str, Any]:
        """What an earlier run of the same kind has done."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            values = json.loads(self._journal.read_text())
            is_whole = self._draft.stat().st_size == self._size
            if values["identity"] == self._identity and is_whole:
                return {
                    name: note for name, note in values["done"].items() if name in self._targets
                }
        return {}


def header_of(pairs: Mapping[str, bytes], targets: Iterable[Target], most: str) -> bytes:
    """Everything before the tensors: pairs as they stand in another file, less what changes."""
    dropped = ("general.file_type", "general.quantization_version", "general.alignment", "split.")
    kept = [raw for key, raw in pairs.items() if not key.startswith(dropped)]
    kept.append(_number("general.quantization_version", 2))
    if most in _FILE_TYPES:
        kept.append(_number("general.file_type", _FILE_TYPES[most]))
    infos = [_info(target) for target in targets]
    head = MAGIC + struct.pack("<IQQ", VERSION, len(infos), len(kept))
    whole = b"".join((head, *kept, *infos))
    return whole + bytes(-len(whole) % ALIGNMENT)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _number(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", _U32, value)


def _info(target: Target) -> bytes:
    dims = struct.pack(f"<I{len(target.shape)}Q", len(target.shape), *reversed(target.shape))
    return (
        _text(target.name) + dims + struct.pack("<IQ", _NUMBERS[target.block_type], target.offset)
    )
