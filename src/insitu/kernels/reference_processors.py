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
    from collections.abc import Sequence

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
