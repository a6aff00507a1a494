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

_LABEL = (1 << 31) | 0xFF
_HAS_VALUE = 1 << 8
_VALUE = (1 << 31) - 1
_MOST_PAIRS = 1 << 16


class CharsMapFault(Exception):
    """The table is broken."""


class CharsMap:
    """One table; characters that begin no longer string are looked up once."""

    def __init__(self, raw: bytes) -> None:
        (size,) = struct.unpack_from("<I", raw) if len(raw) >= 4 else (0,)
        if not size or size % 4 or 4 + size >= len(raw) or raw[-1] != 0:
            raise CharsMapFault("is not a table of normalisation")
        self._units: tuple[int, ...] = struct.unpack_from(f"<{size // 4}I", raw, 4)
        self._replacements = raw[4 + size :]
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


def _offset(unit: int) -> int:
    return (unit >> 10) << ((unit & (1 << 9)) >> 6)
