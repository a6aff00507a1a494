"""GPT-2's byte map: every byte has a visible character, so that a vocabulary is text.

Not here: added tokens, which are spelt as they are and never go through this map.

Always true: the map is a bijection between the 256 bytes and 256 characters.
"""

from __future__ import annotations

from functools import cache

# Bytes that stand for themselves; the other 68 get the characters from U+0100 upwards, in order.
_VISIBLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
# Bytes that occur in no UTF-8 text.
_NEVER = frozenset((0xC0, 0xC1, *range(0xF5, 0x100)))


@cache
def byte_characters() -> dict[int, str]:
    """Byte to character."""
    hidden = [byte for byte in range(256) if byte not in _VISIBLE]
    characters = {byte: chr(byte) for byte in _VISIBLE}
    characters.update({byte: chr(0x100 + index) for index, byte in enumerate(hidden)})
    return characters


@cache
def _character_bytes() -> dict[str, bytes]:
    return {character: bytes((byte,)) for byte, character in byte_characters().items()}


def mapped_bytes(token: str) -> bytes:
    """The bytes a token stands for; a character outside the map stands for its own UTF-8."""
    table = _character_bytes()
    return b"".join(table.get(character) or character.encode() for character in token)


def missing_bytes(vocabulary: dict[str, int]) -> bytes:
    """Bytes of UTF-8 text without a token of their own: text that holds them could be lost."""
    return bytes(
        byte
        for byte, character in byte_characters().items()
        if character not in vocabulary and byte not in _NEVER
    )
