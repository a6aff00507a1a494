"""Run a model's definition over a text, once, and let each linear's weights be chosen as it is met.

What follows is computed with the weights that were chosen, so that later ones can make up for them.

Not here: choosing. Always true: at any time the moments of one linear's inputs are held, and the
weights of one linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.kernels.reference import Reference
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from insitu.kernels.block_parts import Float32
    from insitu.kernels.pack import Segment
    from insitu.kernels.program import BatchArrays, Op
    from insitu.models.load import LoadedModel

    # A segment and the moments of its inputs (sums of their products, [k, k]) to its new weights.
    Choose = Callable[[Segment, Callable[[], Float32]], Float32]

BLOCK_SIZE = 32


class _Calibrating(Reference):
    """The interpreter, each linear's weights replaced on the way."""

    def __init__(self, model: LoadedModel, choose: Choose) -> None:
        kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
        super().__init__(model.program, kv, keep_weights=False)
        self._choose = choose

    def _linear(self, op: Op, batch: BatchArrays) -> Float32:
        self._moments_of_inputs = None
        return super()._linear(op, batch)

    def _segment(self, segment: Segment, forms: dict[int, Any]) -> Float32:
        x = forms[0] if 0 in forms else next(iter(forms.values()))

        def moments() -> Float32:
            if self._moments_of_inputs is None:
                self._moments_of_inputs = x.T @ x
            return self._moments_of_inputs

        return np.asarray(x @ self._choose(segment, moments).T)

    _moments_of_inputs: Float32 | None = None


def run_through(model: LoadedModel, windows: Sequence[np.ndarray], choose: Choose) -> None:
    """Every linear once, over all windows together."""
    _Calibrating(model, choose).run(_batch(windows))


def _batch(windows: Sequence[np.ndarray]) -> Batch:
    lengths = [len(ids) for ids in windows]
    num_blocks = [-(-length // BLOCK_SIZE) for length in lengths]
    first = np.concatenate([[0], np.cumsum(num_blocks)])
    table = np.zeros((len(windows), max(num_blocks)), np.int32)
    slots, positions = [], []
    for row, length in enumerate(lengths):
        table[row, : num_blocks[row]] = np.arange(first[row], first[row + 1])
        positions.append(np.arange(length))
        slots.append(first[row] * BLOCK_SIZE + positions[-1])
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Batch(
        np.concatenate(windows),
        np.concatenate(positions),
        np.concatenate(slots),
        table,
        starts,
        np.array(lengths),
        np.array([starts[-1] - 1]),
    )
