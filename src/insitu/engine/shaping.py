"""How a prompt asks for the logits to be changed before its tokens are chosen, in ids and numbers.

Not here: text (``llm`` makes ids of words), the lists a step needs (``shaper``), arithmetic
(``kernels``). Always true: a value that is off changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Dry:
    """A token that would go on repeating what was said before loses, the more the longer it is.

    It loses ``multiplier * base ** (length - allowed_length)`` where ``length`` tokens before it
    occurred before in the last ``last_n`` tokens (0: in all) and it came next; ids in ``breakers``
    end what counts as repeated.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = 0
    breakers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Shaping:
    """Values for single tokens.

    ``logit_bias`` are (id, what is added), minus infinity to ban it. ``repetition`` is for every
    token of the prompt and the output; ``presence`` and ``frequency`` for those of the output; with
    ``last_n`` all three are for the last so many tokens of both. Of each of ``banned`` the last id
    may not follow the others. ``min_tokens`` is how many come before one of the prompt's stop ids.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    last_n: int = 0
    dry: Dry | None = None
    banned: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0

    @property
    def looks_back(self) -> bool:
        """Whether anything but the same values every time is asked for."""
        return self.has_penalties or bool(self.dry or self.banned or self.min_tokens)

    @property
    def bans(self) -> bool:
        """Whether a token may be banned that nothing but a constraint would choose."""
        return bool(self.banned) or any(value == -math.inf for _, value in self.logit_bias)

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that occurred are to lose."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0


NO_SHAPING = Shaping()


class Shapes(Protocol):
    """What keeps up the edits of one sequence."""

    def edits(self, token_ids: list[int], *, may_end: bool = False) -> list[Any]:
        """What a step needs of them, after these ids."""
        ...
