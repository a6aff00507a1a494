"""Constraints whose masks follow from the tokens they took in, and ones that fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


def set_bits(out: memoryview, allowed: Sequence[int]) -> None:
    """Allow these ids and no others."""
    bits = np.zeros(8 * len(out), np.uint8)
    bits[list(allowed)] = 1
    np.frombuffer(out, np.uint8)[:] = np.packbits(bits, bitorder="little")


@dataclass
class Turns:
    """The k-th token, and every 3rd after it, is k modulo 3; every 5th may be anything."""

    vocab_size: int
    taken: list[int] = field(default_factory=list)

    def allows(self, token_id: int) -> bool:
        """Whether a token may be the next."""
        turn = len(self.taken)
        return turn % 5 == 4 or token_id % 3 == turn % 3

    def fill_mask(self, out: memoryview) -> bool:
        """One bit per allowed token; False if that is all of them."""
        assert len(out) == -(-self.vocab_size // 32) * 4
        set_bits(out, [one for one in range(self.vocab_size) if self.allows(one)])
        return len(self.taken) % 5 != 4

    def advance(self, token_id: int) -> None:
        """Take in one token."""
        assert self.allows(token_id)
        self.taken.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens."""
        del self.taken[len(self.taken) - num_tokens :]

    def fork(self) -> Self:
        """A copy in the same state."""
        return type(self)(self.vocab_size, list(self.taken))

    def forced(self) -> Sequence[int]:
        """Nothing."""
        return ()


class DeadEnd(Turns):
    """Allows nothing after two tokens."""

    def allows(self, token_id: int) -> bool:
        """Whether a token may be the next."""
        return len(self.taken) < 2


class Broken(Turns):
    """Raises where its mask is asked for after two tokens."""

    def fill_mask(self, out: memoryview) -> bool:
        """Anything, then an error."""
        if len(self.taken) == 2:
            raise MemoryError("too large a grammar")
        return False

    def allows(self, token_id: int) -> bool:
        """Whether a token may be the next."""
        return True


class Stubborn(Broken):
    """Raises where it is to take in its second token."""

    def advance(self, token_id: int) -> None:
        """Take in one token, and no more."""
        if self.taken:
            raise ValueError("not a token of this grammar")
        self.taken.append(token_id)


@dataclass
class Only(Turns):
    """Allows these ids alone."""

    ids: tuple[int, ...] = ()

    def allows(self, token_id: int) -> bool:
        """Whether a token may be the next."""
        return token_id in self.ids

    def fill_mask(self, out: memoryview) -> bool:
        """One bit each."""
        set_bits(out, self.ids)
        return True

    def fork(self) -> Self:
        """A copy in the same state."""
        return type(self)(self.vocab_size, list(self.taken), self.ids)
