"""Which experts a row goes through, and with what weight.

Not here: what an expert computes (``reference``). Always true: ties go to the lowest id, and a
weight of 0 is an expert that was not chosen.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from insitu.kernels.reference_math import exp, lane_sum

Float32 = npt.NDArray[np.float32]


def route(logits: Float32, num_active: int, *, is_normalised: bool) -> Float32:
    """Softmax of [rows, experts], over all or over the chosen, and 0 for all but those."""
    highest = np.fmax.reduce(logits, axis=1, keepdims=True)
    powers = exp(logits - highest)
    is_chosen = np.array([_highest(row, num_active) for row in logits], bool)
    if is_normalised:
        total = np.zeros(len(logits), np.float32)
        for e in range(logits.shape[1]):
            total = np.where(is_chosen[:, e], total + powers[:, e], total)
    else:
        total = lane_sum(powers)
    return np.where(is_chosen, powers / total[:, None], np.float32(0))


def _highest(row: Float32, num_active: int) -> npt.NDArray[np.bool_]:
    """Taken one by one; a NaN is never higher than another, so it waits where it stands."""
    is_chosen = np.zeros(len(row), bool)
    for _ in range(num_active):
        left = np.flatnonzero(~is_chosen)
        best = left[0]
        for i in left:
            if row[i] > row[best]:
                best = i
        is_chosen[best] = True
    return is_chosen
