"""How the next token is chosen from one row of logits, in float64: the definition of sampling.

Not here: speed. Always true: a token's noise depends on the seed, its id, the position and the
choice alone; truncation goes min_p, then top_k, then top_p; ties go to the lowest id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

# Probabilities are added up as integers of 2^-40, so that a sum has no order.
MASS_UNIT = 2.0**40
_WORD = np.uint64(0xFFFFFFFF)
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85


@dataclass(frozen=True, slots=True)
class Draw:
    """How one token is drawn; temperature 0 takes the most likely, top_k 0 is off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0


def choose(logits: Float32, draw: Draw) -> int | None:
    """The chosen id, None where a logit is NaN or +Inf, or all are -Inf."""
    highest = logits.max()
    if not np.isfinite(highest):  # NaN, +Inf, or nothing possible
        return None
    if draw.temperature == 0:
        return int(logits.argmax())
    ids = kept_ids(logits, draw)
    scores = _tempered(logits, draw.temperature)[ids] + gumbel(ids, draw)
    return int(ids[scores == scores.max()].min())


def kept_ids(logits: Float32, draw: Draw) -> Ids:
    """Ids that truncation leaves, most likely first, then by id."""
    p = np.exp(_tempered(logits, draw.temperature))  # of the most likely: 1
    order = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    order = order[(p[order] >= draw.min_p) & (logits[order] > -np.inf)]
    if draw.top_k:
        order = order[: draw.top_k]
    if draw.top_p < 1:
        mass = np.cumsum(np.rint(p[order] * MASS_UNIT).astype(np.uint64)).astype(np.float64)
        order = order[: int(np.searchsorted(mass, draw.top_p * mass[-1])) + 1]
    return order


def gumbel(ids: Ids, draw: Draw) -> Float64:
    """-log(-log u) of each token's own uniform number."""
    u = (philox_words(ids, draw).astype(np.float64) + 0.5) / 2.0**32
    return np.asarray(-np.log(-np.log(u)))


def philox_words(ids: Ids, draw: Draw) -> npt.NDArray[np.uint64]:
    """Philox4x32-10: key seed, counter (id // 4, position, choice, 0), word id % 4."""
    shape = len(ids)
    a, b = (ids // 4).astype(np.uint64), np.full(shape, draw.position, np.uint64)
    c, d = np.full(shape, draw.choice, np.uint64), np.zeros(shape, np.uint64)
    key = [draw.seed & 0xFFFFFFFF, draw.seed >> 32]
    half = np.uint64(32)
    for _ in range(10):
        x, y = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (y >> half) ^ b ^ np.uint64(key[0]), y & _WORD
        c, d = (x >> half) ^ d ^ np.uint64(key[1]), x & _WORD
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _KEY_STEPS, strict=True)]
    return np.stack([a, b, c, d])[ids % 4, np.arange(shape)]


def log_probabilities(logits: Float32) -> Float32:
    """Log-softmax of the raw logits, before temperature or truncation."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()), np.float32)


def _tempered(logits: Float32, temperature: float) -> Float64:
    return (logits.astype(np.float64) - np.float64(logits.max())) / temperature
