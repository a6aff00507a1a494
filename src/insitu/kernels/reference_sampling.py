"""How the next token is chosen from one row of logits, in float64: the definition of sampling.

Not here: speed, or how logits are changed before (``reference_processors``).

Always true: a token's noise depends on the seed, its id, the position and the choice alone; a
setting keeps at least one token; ties go to the lowest id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from insitu.sampling_params import Order

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
    """How one token is drawn; temperature 0 takes the most likely, what has its default is off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    order: Order = Order.OWN
    seed: int = 0
    choice: int = 0
    position: int = 0


def choose(logits: Float32, draw: Draw) -> int | None:
    """The chosen id, None where a logit is NaN or +Inf, or all are -Inf."""
    highest = logits.max()
    if not np.isfinite(highest):  # NaN, +Inf, or nothing possible
        return None
    ids = kept_ids(logits, draw)
    if draw.temperature == 0:
        return int(ids[0])
    scores = _tempered(logits[ids], highest, draw.temperature) + gumbel(ids, draw)
    return int(ids[scores == scores.max()].min())


def kept_ids(logits: Float32, draw: Draw) -> Ids:
    """Ids that truncation leaves, most likely first, then by id."""
    order: Ids = np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))
    if draw.temperature == 0:
        return np.asarray(order[:1])
    order = order[logits[order] > -np.inf]
    if draw.top_n_sigma > 0:
        nats = logits[order].astype(np.float64)
        order = order[nats >= nats[0] - draw.top_n_sigma * nats.std()]
    temperature = 1.0 if draw.order is Order.LLAMA_CPP else draw.temperature
    for setting in _SETTINGS[draw.order]:
        order = setting(order, logits[order], temperature, draw)
    return _without_top(order, logits[order], temperature, draw)


def _top_k(order: Ids, logits: Float32, temperature: float, draw: Draw) -> Ids:
    return order[: draw.top_k or None]


def _min_p(order: Ids, logits: Float32, temperature: float, draw: Draw) -> Ids:
    return order[_shares(logits, temperature) >= draw.min_p]


def _top_p(order: Ids, logits: Float32, temperature: float, draw: Draw) -> Ids:
    """The first at which the mass reaches its share is the last."""
    if draw.top_p >= 1:
        return order
    mass = np.cumsum(_masses(logits, temperature)).astype(np.float64)
    return order[: int(np.searchsorted(mass, draw.top_p * mass[-1])) + 1]


def _typical(order: Ids, logits: Float32, temperature: float, draw: Draw) -> Ids:
    """Of those that have mass, the ones of the least unusual surprise; of like ones, all."""
    if draw.typical_p >= 1:
        return order
    masses = _masses(logits, temperature)
    shares = _shares(logits, temperature)[masses > 0]
    nats = _tempered(logits, logits[0], temperature)[masses > 0]
    distances = np.abs(nats - (shares * nats).sum() / shares.sum())
    nearest = np.argsort(distances, kind="stable")
    mass = np.cumsum(masses[masses > 0][nearest]).astype(np.float64)
    furthest = distances[nearest[int(np.searchsorted(mass, draw.typical_p * mass[-1]))]]
    return np.asarray(order[masses > 0][distances <= furthest])


def _without_top(order: Ids, logits: Float32, temperature: float, draw: Draw) -> Ids:
    """Without those that reach the threshold, but for the least likely of them; now and then."""
    if draw.xtc_threshold > 0.5 or uniform(draw) >= draw.xtc_probability:
        return order
    shares = _shares(logits, temperature)
    num_high = int((shares >= draw.xtc_threshold * shares.sum()).sum())
    return order[max(0, num_high - 1) :]


_SETTINGS = {
    Order.OWN: (_min_p, _top_k, _top_p, _typical),
    Order.HUGGINGFACE: (_top_k, _top_p, _min_p, _typical),
    Order.LLAMA_CPP: (_top_k, _typical, _top_p, _min_p),
}


def uniform(draw: Draw) -> float:
    """A row's own number in (0, 1), apart from its tokens' noise."""
    word = int(_philox(np.zeros(1, np.int64), draw, 1)[0, 0])
    return (word + 0.5) / 2.0**32


def gumbel(ids: Ids, draw: Draw) -> Float64:
    """-log(-log u) of each token's own uniform number."""
    u = (philox_words(ids, draw).astype(np.float64) + 0.5) / 2.0**32
    return np.asarray(-np.log(-np.log(u)))


def philox_words(ids: Ids, draw: Draw) -> npt.NDArray[np.uint64]:
    """Philox4x32-10: key seed, counter (id // 4, position, choice, 0), word id % 4."""
    return _philox(ids // 4, draw, 0)[ids % 4, np.arange(len(ids))]


def _philox(first: Ids, draw: Draw, last: int) -> npt.NDArray[np.uint64]:
    """The four words of each counter (first, position, choice, last)."""
    shape = len(first)
    a, b = first.astype(np.uint64), np.full(shape, draw.position, np.uint64)
    c, d = np.full(shape, draw.choice, np.uint64), np.full(shape, last, np.uint64)
    key = [draw.seed & 0xFFFFFFFF, draw.seed >> 32]
    half = np.uint64(32)
    for _ in range(10):
        x, y = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = (y >> half) ^ b ^ np.uint64(key[0]), y & _WORD
        c, d = (x >> half) ^ d ^ np.uint64(key[1]), x & _WORD
        key = [(word + step) & 0xFFFFFFFF for word, step in zip(key, _KEY_STEPS, strict=True)]
    return np.stack([a, b, c, d])


def log_probabilities(logits: Float32 | Float64) -> Float32:
    """Log-softmax of the raw logits, before temperature or truncation."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    return np.asarray(wide - np.log(np.exp(wide).sum()), np.float32)


def processed_log_probabilities(logits: Float32, draw: Draw) -> Float32:
    """Of what a token is drawn from; minus infinity where it cannot be drawn."""
    ids = kept_ids(logits, draw)
    logprobs = np.full(len(logits), -np.inf, np.float32)
    logprobs[ids] = log_probabilities(
        _tempered(logits[ids], logits[ids[0]], draw.temperature or 1.0)
    )
    return logprobs


def _tempered(logits: Float32, highest: np.float32, temperature: float) -> Float64:
    with np.errstate(over="ignore"):
        return (logits.astype(np.float64) - np.float64(highest)) / temperature


def _shares(logits: Float32, temperature: float) -> Float64:
    """Probabilities, where that of the first is 1."""
    return np.exp(_tempered(logits, logits[0], temperature))


def _masses(logits: Float32, temperature: float) -> npt.NDArray[np.uint64]:
    return np.rint(_shares(logits, temperature) * MASS_UNIT).astype(np.uint64)
