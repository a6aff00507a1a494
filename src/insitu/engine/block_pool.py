"""Lend out KV blocks by id, take them back, and find again those whose contents are still good.

A block is *held* while a sequence refers to it and *free* otherwise. A free block may be *cached*:
its keys and values are known by a hash, so that a sequence that begins alike can hold it as it is.

Not here: tensors, whose blocks they are, or what is hashed (``prefix``).

Always true: ``num_free + num_held == num_blocks``, no id is lent twice, and a block is cached under
a hash only from ``publish`` until it is lent anew or forgotten.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class BlockPool:
    """Counts the blocks of one KV pool."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Last freed first: those blocks are committed and warm, the rest may stay untouched.
        self._blank: deque[int] = deque(range(num_blocks))
        # Cached and free, least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._refs = [0] * num_blocks
        self._by_hash: dict[bytes, int] = {}
        self._published: dict[int, tuple[bytes, bytes]] = {}  # block -> (hash, salt)
        # Forgotten while held: to be wiped once free.
        self._doomed: set[int] = set()
        self._chores: list[tuple[int | None, int]] = []

    @property
    def num_free(self) -> int:
        """Blocks that can be lent."""
        return len(self._blank) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that some sequence refers to."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their hash, held or free."""
        return len(self._by_hash)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks that many tokens fill."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Lend that many blocks, or None if there are too few; all or nothing."""
        if num_blocks > self.num_free:
            return None
        return [self._lend() for _ in range(num_blocks)]

    def _lend(self) -> int:
        if self._blank:
            block = self._blank.popleft()
        else:
            block, _ = self._idle.popitem(last=False)
            self._unpublish(block)
        assert self._refs[block] == 0
        self._refs[block] = 1
        return block

    def hold(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._idle[block]
            self._refs[block] += 1

    def free(self, blocks: list[int]) -> None:
        """Take blocks back, each held once less. A chain's end is the first to be lent anew."""
        for block in reversed(blocks):
            assert self._refs[block] > 0
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if block in self._published:
                self._idle[block] = None
                continue
            if block in self._doomed:
                self._doomed.remove(block)
                self._chores.append((None, block))
            self._blank.appendleft(block)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Hold the cached blocks of a chain of hashes, as far as it goes."""
        blocks = []
        for block_hash in hashes:
            block = self._by_hash.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        self.hold(blocks)
        return blocks

    def publish(self, block: int, block_hash: bytes, salt: bytes) -> None:
        """Let a held block, all of it computed, be found; the first of equal ones stays."""
        assert self._refs[block] > 0
        if block_hash not in self._by_hash and block not in self._published:
            self._by_hash[block_hash] = block
            self._published[block] = (block_hash, salt)

    def forget(self, salt: bytes) -> None:
        """Let nothing whose salt begins so be found again; its blocks are to be wiped."""
        for block, (_, owner) in list(self._published.items()):
            if not owner.startswith(salt):
                continue
            self._unpublish(block)
            if self._refs[block]:
                self.doom([block])
                continue
            del self._idle[block]
            self._chores.append((None, block))
            self._blank.appendleft(block)

    def doom(self, blocks: Iterable[int]) -> None:
        """Let held blocks be wiped once they are free."""
        self._doomed.update(blocks)

    def copy(self, source: int) -> int | None:
        """Lend a block that is to begin as a copy of a held one, or None if there is none."""
        if not self.num_free:
            return None
        block = self._lend()
        self._chores.append((source, block))
        return block

    def take_chores(self) -> list[tuple[int | None, int]]:
        """What must be done to contents before anything else runs, in this order.

        (source, block): copy; (None, block): wipe.
        """
        chores, self._chores = self._chores, []
        return chores

    def _unpublish(self, block: int) -> None:
        block_hash, _ = self._published.pop(block)
        del self._by_hash[block_hash]
