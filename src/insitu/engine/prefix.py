"""What a block of keys and values is known by: a salted chain of hashes over token ids.

A block's hash covers the salt, every token before the block and its own, so that two blocks have
one hash only if their keys and values are the same bits (and their owner may share them).

Not here: which block has which hash (``block_pool``), or who may have which salt (the caller).

Always true: a hash never depends on how the tokens came in.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_HASH_BYTES = 32


class HashChain:
    """The hashes of a sequence's full blocks, made as they are asked for."""

    def __init__(self, salt: bytes, block_size: int) -> None:
        self.salt = salt
        self._block_size = block_size
        self._start = blake2b(salt, digest_size=_HASH_BYTES).digest()
        self._hashes: list[bytes] = []

    def of(self, token_ids: Sequence[int], num_blocks: int) -> list[bytes]:
        """Hashes of the first ``num_blocks`` blocks of ids that begin as they always did."""
        size = self._block_size
        assert num_blocks * size <= len(token_ids)
        for index in range(len(self._hashes), num_blocks):
            block_hash = blake2b(
                self._hashes[-1] if index else self._start, digest_size=_HASH_BYTES
            )
            block_hash.update(array("i", token_ids[index * size : (index + 1) * size]))
            self._hashes.append(block_hash.digest())
        return self._hashes[:num_blocks]
