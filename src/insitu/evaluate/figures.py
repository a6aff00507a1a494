"""What a model's logits say about a text, and about another model's logits of it.

Not here: running models. All sums are float64.

Always true: a figure of two models is taken over every position; one of the text over those whose
next token the window holds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

NUM_BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Positions whose likeliest token has a probability of ``low`` to ``high``."""

    low: float
    high: float
    count: int
    confidence: float | None  # mean probability of the likeliest token
    accuracy: float | None  # how often it came


@dataclass(frozen=True, slots=True)
class Report:
    """The figures; those of a comparison are None where there was none."""

    tokens: int
    perplexity: float
    kl_mean: float | None
    kl_p99: float | None
    kl_max: float | None
    top1_agreement: float | None  # of 1
    against_perplexity: float | None
    calibration_error: float  # mean of |confidence - accuracy| over bins, by their counts
    calibration: tuple[Bin, ...]

    def as_json(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Figures:
    """Takes rows as they come; ``report`` is what they amount to."""

    def __init__(self) -> None:
        self._losses: list[Float64] = []
        self._other_losses: list[Float64] = []
        self._kl: list[Float64] = []
        self._agreed: list[npt.NDArray[np.bool_]] = []
        self._confidence: list[Float64] = []
        self._hit: list[npt.NDArray[np.bool_]] = []

    @property
    def kl(self) -> Float64:
        """KL divergence of each position, in nats."""
        return np.concatenate(self._kl) if self._kl else np.empty(0)

    def take(self, logits: Float32, other: Float32 | None, following: Int32) -> None:
        """Rows [r, vocab_size] and the ids that follow the first of them (r, or one less)."""
        ours = log_softmax(logits)
        ahead = np.arange(len(following))
        likeliest = ours.argmax(axis=1)
        self._losses.append(-ours[ahead, following])
        self._confidence.append(np.exp(ours[ahead, likeliest[ahead]]))
        self._hit.append(likeliest[ahead] == following)
        if other is None:
            return
        truth = log_softmax(other)
        self._other_losses.append(-truth[ahead, following])
        self._agreed.append(truth.argmax(axis=1) == likeliest)
        # Rounding may take a sum of almost equal rows just below zero.
        self._kl.append(np.maximum((np.exp(truth) * (truth - ours)).sum(axis=1), 0.0))

    def report(self, num_tokens: int) -> Report:
        """Of everything taken."""
        kl, has_other = self.kl, bool(self._kl)
        bins, error = _calibration(np.concatenate(self._confidence), np.concatenate(self._hit))
        return Report(
            tokens=num_tokens,
            perplexity=_perplexity(self._losses),
            kl_mean=float(kl.mean()) if has_other else None,
            kl_p99=float(np.quantile(kl, 0.99)) if has_other else None,
            kl_max=float(kl.max()) if has_other else None,
            top1_agreement=float(np.concatenate(self._agreed).mean()) if has_other else None,
            against_perplexity=_perplexity(self._other_losses) if has_other else None,
            calibration_error=error,
            calibration=bins,
        )


def log_softmax(logits: Float32) -> Float64:
    """In float64, rows apart."""
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _perplexity(losses: list[Float64]) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(np.concatenate(losses).mean()))


def _calibration(confidence: Float64, hit: npt.NDArray[np.bool_]) -> tuple[tuple[Bin, ...], float]:
    index = np.minimum((confidence * NUM_BINS).astype(int), NUM_BINS - 1)
    bins, error = [], 0.0
    for i in range(NUM_BINS):
        mine = index == i
        count = int(mine.sum())
        mean = float(confidence[mine].mean()) if count else None
        accuracy = float(hit[mine].mean()) if count else None
        bins.append(Bin(i / NUM_BINS, (i + 1) / NUM_BINS, count, mean, accuracy))
        if mean is not None and accuracy is not None:
            error += count / len(confidence) * abs(mean - accuracy)
    return tuple(bins), error
