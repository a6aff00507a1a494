"""The settings that a file's factors of rope come from: a GGUF file has the factors alone.

Not here: the formula (``rope_scaling``), or who asks (``twin_rope``).

Always true: settings that are found give the factors again, to what float32 can tell of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from insitu.models.rope_scaling import by_wavelength, linear, turns_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from insitu.models.spec import RopeSpec

_CLOSE = 1e-6
_LOW, _HIGH = 1.0, 4.0  # turns in the original length, as all models have them so far
_LENGTHS = [2**power for power in range(20, 3, -1)]


def settings_of(plain: RopeSpec, factors: Sequence[float]) -> dict[str, float | int | str] | None:
    """Those of kind ``llama3`` or ``linear``, if any are such; ``plain`` has no factors."""
    factor = float(str(np.float32(max(factors))))
    if not 1 < factor < math.inf:
        return None
    if _are_close(linear(plain, factor).divisors, factors):
        return {"rope_type": "linear", "factor": factor}
    for high, original in _candidates(plain, factors, factor):
        made = by_wavelength(plain, factor, _LOW, high, original)
        if _are_close(made.divisors, factors):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    return None


def _candidates(
    plain: RopeSpec, factors: Sequence[float], factor: float
) -> Iterator[tuple[float, int]]:
    """The upper bound of turns and the original length; the lower bound is 1.

    A pair keeps (turns - low) / (high - low) of its pace, which lies on a line over turns: its
    slope and where it begins are all that factors tell, and the three numbers two.
    """
    yield from ((_HIGH, length) for length in _LENGTHS)
    kept = (1 / np.array(factors) - 1 / factor) / (1 - 1 / factor)
    turns = np.array(turns_in(plain, 1))
    between = (kept > _CLOSE) & (kept < 1 - _CLOSE)
    if between.sum() >= 2:
        slope, start = np.polyfit(turns[between], kept[between], 1)
        if start < 0:
            high = round(float(_LOW - _LOW / start), 3)
            yield high, round(float(slope) * (high - _LOW))


def _are_close(first: Sequence[float], second: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(first, second, strict=True))
