"""Which value of its grid each weight takes: the nearest, or (GPTQ) so that errors cancel out.

GPTQ goes along k: a column's error is made up for by the columns after it, as the inputs' second
moments say (E. Frantar et al., 2022, arXiv 2210.17323).

Not here: grids. Always true: without moments, every weight takes the nearest value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.assemble import assemble
from insitu.kernels.block_parts import Unpacked
from insitu.kernels.blocks import FLOATS, BlockType, decode
from insitu.kernels.encode import encode
from insitu.quantize.grids import Grid, fit

if TYPE_CHECKING:
    from insitu.kernels.block_parts import Bytes, Float32

Float64 = npt.NDArray[np.float64]

# Added to the moments' diagonal, as a share of its mean.
DAMPING = 0.01
_TOGETHER = 256  # columns whose errors reach the later ones in one product


@dataclass(frozen=True, slots=True)
class Rounded:
    """Quantised rows: their blocks, and the weights those decode to."""

    blocks: Bytes  # [n, bytes of a row]
    weights: Float32  # [n, k]


def round_nearest(block_type: BlockType, weights: Float32, importance: Float32) -> Rounded:
    """Each weight to the nearest value of grids fitted under ``importance`` [k]."""
    if block_type in FLOATS:
        return _floats(block_type, weights)
    size = block_type.block_size
    grids, integers = [], []
    for start in range(0, weights.shape[1], size):
        block = np.ascontiguousarray(weights[:, start : start + size])
        grid = fit(block_type, block, importance[start : start + size])
        grids.append(grid)
        integers.append(grid.nearest(block, slice(None)))
    return _joined(block_type, grids, np.concatenate(integers, axis=1))


def round_with_moments(block_type: BlockType, weights: Float32, moments: Float32) -> Rounded:
    """GPTQ: ``moments`` [k, k] are sums of products of inputs."""
    if block_type in FLOATS:
        return _floats(block_type, weights)
    left, size = weights.copy(), block_type.block_size
    factor = _factor(moments.astype(np.float64)).astype(np.float32)
    importance = (1 / np.diag(factor) ** 2).astype(np.float32)
    integers, grids = np.empty_like(left), []
    for first in range(0, left.shape[1], _TOGETHER):
        last = min(first + _TOGETHER, left.shape[1])
        errors = np.empty((len(left), last - first), np.float32)
        for start in range(first, last, size):
            block = np.ascontiguousarray(left[:, start : start + size])
            grids.append(fit(block_type, block, importance[start : start + size]))
            for column in range(start, start + size):
                at = slice(column - start, column - start + 1)
                now = left[:, column : column + 1]
                q = grids[-1].nearest(now, at)
                integers[:, column] = q[:, 0]
                error = (now - grids[-1].values(q, at)) / factor[column, column]
                errors[:, column - first] = error[:, 0]
                left[:, column + 1 : last] -= error * factor[column, column + 1 : last]
        left[:, last:] -= errors @ factor[first:last, last:]
    return _joined(block_type, grids, integers)


def _floats(block_type: BlockType, weights: Float32) -> Rounded:
    """Each to the nearest float: no error is worth making up for."""
    n, k = weights.shape
    raw = encode(block_type, weights)
    return Rounded(np.frombuffer(raw, np.uint8).reshape(n, -1), decode(block_type, raw, n, k))


def _factor(moments: Float64) -> Float64:
    """The upper Cholesky factor of the inverse of the damped moments."""
    diagonal = np.diag(moments).copy()
    mean = diagonal.mean() or 1.0
    moments[np.diag_indices_from(moments)] = (
        np.where(diagonal == 0, mean, diagonal) + DAMPING * mean
    )
    return np.linalg.cholesky(np.linalg.inv(moments)).T


def _joined(block_type: BlockType, grids: list[Grid], integers: Float32) -> Rounded:
    parts = [grid.parts for grid in grids]

    def join(name: str) -> np.ndarray | None:
        arrays = [getattr(part, name) for part in parts]
        return None if arrays[0] is None else np.concatenate(arrays, axis=1)

    d = join("d")
    assert d is not None
    rest = {name: join(name) for name in ("m", "sub_scale", "dmin", "sub_min")}
    whole = Unpacked(integers.astype(np.int8), d, **rest)
    return Rounded(assemble(block_type, whole), whole.weights())
