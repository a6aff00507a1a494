"""Lend out KV blocks by id, and take them back.

Not here: tensors, or whose blocks they are. A block is *held* while a sequence refers to it and
*free* otherwise.

Always true: ``num_free + num_held == num_blocks``, and no id is lent twice.
"""

from __future__ import annotations

from collections import deque


class BlockPool:
    """Counts the blocks of one KV pool."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Last freed first: those blocks are committed and warm, the rest may stay untouched.
        self._free: deque[int] = deque(range(num_blocks))
        self._refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that can be lent."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that some sequence refers to."""
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks that many tokens fill."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Lend that many blocks, or None if there are too few; all or nothing."""
        if num_blocks > len(self._free):
            return None
        blocks = [self._free.popleft() for _ in range(num_blocks)]
        for block in blocks:
            assert self._refs[block] == 0
            self._refs[block] = 1
        return blocks

    def free(self, blocks: list[int]) -> None:
        """Take blocks back, each held once less."""
        for block in reversed(blocks):
            assert self._refs[block] > 0
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free.appendleft(block)
