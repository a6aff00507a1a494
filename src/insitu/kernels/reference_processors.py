"""How a row of logits is changed before a token is chosen: the definition.

Not here: choosing (``reference_sampling``), or speed.

Always true: edits happen in their order, each computed in float64 and rounded once to float32; what
was impossible stays so; a logit that is finite stays finite unless its token is banned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from insitu.kernels.sampling import Float32, UInt32

MOST_LOGIT = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one token's logit.

    ``count`` None: ``value`` alone is added, minus infinity to ban the token. A number: the
    penalties apply for so many occurrences.
    """

    token_id: int
    value: float = 0.0
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Penalties:
    """What the tokens that occurred before lose; these values are off."""

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


def changed(
    logits: Float32,
    edits: Sequence[Edit] = (),
    penalties: Penalties | None = None,
    mask: UInt32 | None = None,
) -> Float32:
    """The logits a token is chosen by: edits first, then the mask."""
    row = logits.copy()
    for edit in edits:
        row[edit.token_id] = _edited(float(row[edit.token_id]), edit, penalties or Penalties())
    if mask is not None:
        bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
        row[bits[: len(row)] == 0] = -np.inf
    return row


def _edited(logit: float, edit: Edit, penalties: Penalties) -> float:
    if -np.inf in (logit, edit.value):
        return -np.inf
    if edit.count is not None:
        logit = logit / penalties.repetition if logit > 0 else logit * penalties.repetition
        logit -= penalties.frequency * edit.count
        logit -= penalties.presence if edit.count > 0 else 0.0
    return min(max(logit + edit.value, -MOST_LOGIT), MOST_LOGIT)


def occurrences(
    token_ids: Sequence[int], num_prompt_tokens: int, *, last_n: int = 0
) -> dict[int, int]:
    """Which tokens the penalties are for, and how often presence and frequency count each.

    All of prompt and output, counted in the output; or, of both, the last ``last_n``.
    """
    counted = token_ids[-last_n:] if last_n else token_ids[num_prompt_tokens:]
    counts = dict.fromkeys(counted if last_n else token_ids, 0)
    for token_id in counted:
        counts[token_id] += 1
    return counts


def repetitions(
    token_ids: Sequence[int], breakers: Collection[int] = (), *, last_n: int = 0
) -> dict[int, int]:
    """By token: of the last tokens, the most that were there before with this one after them.

    Of the last ``last_n`` tokens, or of all. Nothing equals a breaker.
    """
    seen = list(token_ids[-last_n:] if last_n else token_ids)
    longest: dict[int, int] = {}
    for position in range(len(seen) - 1):
        length = 0
        while length <= position and seen[position - length] == seen[-1 - length]:
            if seen[position - length] in breakers:
                break
            length += 1
        if length:
            after = seen[position + 1]
            longest[after] = max(length, longest.get(after, 0))
    return longest


def repetition_penalty(
    length: int, *, multiplier: float, base: float, allowed_length: int
) -> float:
    """What a token loses that would make a repetition of ``length`` tokens one longer."""
    return multiplier * base ** (length - allowed_length) if length >= allowed_length else 0.0
