"""SentencePiece's normalisation table: which strings stand for which before a text is cut up.

Not here: white space (``gguf_encoders``).

Always true: at each place the longest string of the table is replaced; a table is checked when it
is read, and walked within its bounds.

    bytes   | size of the trie | trie: a double array, 32-bit units | replacements, each ends in 0 |
    unit      bits 31, 7-0: label · 8: a value follows · 30-10: offset, shifted by 8 if bit 9 is set
"""

from __future__ import annotations

import struct
from itertools import chain

import numpy as np
import numpy.typing as npt

_LABEL = (1 << 31) | 0xFF
_HAS_VALUE = 1 << 8
_VALUE = (1 << 31) - 1
_MOST_PAIRS = 1 << 16
_MOST_DEEP = 256  # bytes of the longest string that is replaced
_MOST_BYTES = 128  # of what stands for it
_NODES_AT_ONCE = 1 << 12
_MOST_VISITS = 8  # of each of the trie's units


class CharsMapFault(Exception):
    """The table is broken."""


class CharsMap:
    """One table; characters that begin no longer string are looked up once."""

    def __init__(self, raw: bytes) -> None:
        (size,) = struct.unpack_from("<I", raw) if len(raw) >= 4 else (0,)
        if not size or size % 4 or 4 + size >= len(raw) or raw[-1] != 0:
            raise CharsMapFault("is not a table of normalisation")
        _check_trie(np.frombuffer(raw, "<u4", size // 4, 4))
        self._units: tuple[int, ...] = struct.unpack_from(f"<{size // 4}I", raw, 4)
        self._replacements = raw[4 + size :]
        if max(map(len, self._replacements.split(b"\0"))) > _MOST_BYTES:
            raise CharsMapFault(f"has a replacement of more than {_MOST_BYTES} bytes")
        self._single: dict[str, str] = {}
        # What stands at a place where no longer string than these two characters could begin.
        self._pairs: dict[str, tuple[str, int]] = {}

    def normalized(self, text: str) -> str:
        """The text with every string of the table replaced."""
        single = self._single
        if all(character in single for character in set(text)):
            return "".join(map(single.__getitem__, text))
        out, at = [], 0
        while at < len(text):
            known = single.get(text[at])
            if known is not None:
                out.append(known)
                at += 1
                continue
            pair = text[at : at + 2]
            found = self._pairs.get(pair) or self._longest(text, at)
            out.append(found[0])
            at += found[1]
        return "".join(out)

    def _longest(self, text: str, start: int) -> tuple[str, int]:
        """What stands for the longest string of the table from here on, and that string's size."""
        found, size = text[start], 1
        node = _offset(self._unit(0))
        goes_on = True
        for index in range(start, len(text)):
            node, value, goes_on = self._step(node, text[index].encode())
            if not goes_on:
                break
            if value is not None:
                found, size = self._replacement(value), index - start + 1
            if index == start and not self._has_children(node):
                goes_on = False
                break
        if not goes_on and index == start and size == 1:
            self._single[text[start]] = found
        elif not goes_on and index == start + 1:
            if len(self._pairs) == _MOST_PAIRS:
                self._pairs.clear()
            self._pairs[text[start : start + 2]] = (found, size)
        return found, size

    def _step(self, node: int, character: bytes) -> tuple[int, int | None, bool]:
        """Down the trie by one character: where to, the value there, and whether there is a way."""
        value = None
        for byte in character:
            node ^= byte
            unit = self._unit(node)
            if unit & _LABEL != byte or not byte:
                return node, None, False
            node ^= _offset(unit)
            value = self._unit(node) & _VALUE if unit & _HAS_VALUE else None
        return node, value, True

    def _has_children(self, node: int) -> bool:
        """Whether a longer string of the table begins so."""
        for byte in chain(range(1, 0x80), range(0xC2, 0xF5), range(0x80, 0xC2)):
            index = node ^ byte
            if index < len(self._units) and self._units[index] & _LABEL == byte:
                return True
        return False

    def _unit(self, index: int) -> int:
        if index >= len(self._units):
            raise CharsMapFault("points beyond its end")
        return self._units[index]

    def _replacement(self, value: int) -> str:
        if value >= len(self._replacements):
            raise CharsMapFault("points beyond its replacements")
        end = self._replacements.index(0, value)
        return self._replacements[value:end].decode(errors="replace")


def _check_trie(units: npt.NDArray[np.uint32]) -> None:
    """Refuse a trie whose ways go in a circle or are too long to be walked; they may meet."""
    labels = units & np.uint32(_LABEL)
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    nodes, num_seen = offsets[:1].astype(np.int64), 0
    steps = np.arange(1, 256, dtype=np.int64)
    for _ in range(_MOST_DEEP):
        found = []
        for at in range(0, len(nodes), _NODES_AT_ONCE):
            below = nodes[at : at + _NODES_AT_ONCE, None] ^ steps  # where each byte would lead
            inside = below < len(units)
            hits = labels[np.where(inside, below, 0)] == steps
            there = below[inside & hits]
            found.append(there ^ offsets[there].astype(np.int64))
            num_seen += len(there)
            if num_seen > _MOST_VISITS * len(units):
                raise CharsMapFault("goes in a circle")
        nodes = np.unique(np.concatenate(found))
        if not len(nodes):
            return
    raise CharsMapFault(f"has a string of more than {_MOST_DEEP} bytes")


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
