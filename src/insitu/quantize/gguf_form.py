"""A GGUF file, quantised: the pairs of another one, its tensors in their new types.

Not here: which types (``layout``) or numbers (``rounding``). Always true: blocks lie in the file as
they are.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

from insitu.models.twins import TwinSource
from insitu.quantize.layout import ALIGNMENT, Target, Types, lay_out
from insitu.weights.gguf import MAGIC, TYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from insitu.weights.gguf import GGUFFile
    from insitu.weights.gguf_split import SplitGGUF

VERSION = 3
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY, _I64 = 4, 5, 6, 7, 8, 9, 11
_NUMBERS = {name: number for number, name in TYPE_NAMES.items()}
# general.file_type, by the type of most weights.
_FILE_TYPES = {
    "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q4_K": 14, "Q5_K": 16,
    "Q6_K": 18,
}  # fmt: skip


class GGUFForm:
    """How such a file is written."""

    def __init__(self, path: Path, source: GGUFFile | SplitGGUF | TwinSource, types: Types) -> None:
        self.path = path
        self.targets = lay_out(source.tensors, types)
        kinds = Counter(t.block_type for t in self.targets if not t.is_kept)
        most = str(next((kind for kind, _ in kinds.most_common(1)), types.layers))
        if isinstance(source, TwinSource):
            pairs = {key: _pair(key, value) for key, value in source.values.items()}
        else:
            pairs = source.raw_pairs()
        self.header = _header(pairs, self.targets, most)
        end = max((t.offset + t.num_bytes for t in self.targets), default=0)
        self.num_bytes = -(-end // ALIGNMENT) * ALIGNMENT

    def prepare(self) -> None:
        """Nothing lies beside it."""

    def stored(self, _: Target, blocks: bytes | memoryview) -> bytes | memoryview:
        """A tensor's blocks as they lie in the file."""
        return blocks

    def blocks(self, _: Target, stored: bytes) -> bytes:
        """The way back."""
        return stored


def _header(pairs: Mapping[str, bytes], targets: Iterable[Target], most: str) -> bytes:
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


def _pair(key: str, value: Any) -> bytes:
    """A key with its value, of the type that readers look for."""
    return _text(key) + (_array(value) if isinstance(value, list) else _value(value))


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<IB", _BOOL, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    is_short = 0 <= value < 1 << 32
    return struct.pack("<II", _U32, value) if is_short else struct.pack("<Iq", _I64, value)


def _array(values: list[Any]) -> bytes:
    """Of strings, of numbers such as scores, or of integers such as the types of tokens."""
    if values and isinstance(values[0], str):
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(values))
        return head + b"".join(map(_text, values))
    if values and isinstance(values[0], float):
        return struct.pack(f"<IIQ{len(values)}f", _ARRAY, _F32, len(values), *values)
    head = struct.pack("<IIQ", _ARRAY, _I32, len(values))
    return head + struct.pack(f"<{len(values)}i", *values)


def _info(target: Target) -> bytes:
    dims = struct.pack(f"<I{len(target.shape)}Q", len(target.shape), *reversed(target.shape))
    return (
        _text(target.name) + dims + struct.pack("<IQ", _NUMBERS[target.block_type], target.offset)
    )
