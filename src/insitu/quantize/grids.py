"""The values that a block's weights may take: scales and minima, fitted to what is important.

A grid is fitted to the weights of one block (32 or 256 neighbours in k) of every row; which of its
values each weight takes is decided after (``rounding``), so that errors can be made up for.

Not here: layouts (``kernels.assemble``). Always true: a value is what the block will decode to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.block_parts import Unpacked, spread
from insitu.kernels.blocks import FLOATS, BlockType

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.block_parts import Float32, Int8, Int32

# Of the scale that takes in the largest weight: a little less clips it and serves the others.
_FACTORS = np.linspace(0.7, 1.1, 17).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Grid:
    """weight = step * q - offset, q from ``low`` to ``high``; ``parts`` lack their q."""

    step: Float32  # [n, size]
    offset: Float32  # [n, size]
    low: int
    high: int
    parts: Unpacked

    def nearest(self, weights: Float32, columns: slice) -> Float32:
        """Integers, as floats, that come nearest."""
        step = self.step[:, columns]
        safe = np.where(step == 0, np.float32(1), step)
        return np.clip(np.rint((weights + self.offset[:, columns]) / safe), self.low, self.high)

    def values(self, q: Float32, columns: slice) -> Float32:
        """What integers decode to."""
        return np.asarray(q * self.step[:, columns] - self.offset[:, columns])


def fit(block_type: BlockType, weights: Float32, importance: Float32) -> Grid:
    """A grid for one block of each row; ``importance`` weighs the squares of errors, [size]."""
    return _FIT[block_type](weights, np.maximum(importance, 1e-12).astype(np.float32))


def can_fit(block_type: BlockType) -> bool:
    """Whether there are grids of this type, or it holds floats."""
    return block_type in _FIT or block_type in FLOATS


def _half(values: Float32) -> Float32:
    return np.clip(values, -65504, 65504).astype(np.float16).astype(np.float32)


def _divided(top: Float32, bottom: Float32) -> Float32:
    return np.asarray(top / np.where(bottom == 0, np.float32(1), bottom), np.float32)


def _best_scale(groups: Float32, h: Float32, low: int, high: int) -> Float32:
    """The scale of each group [..., size] with the least weighted error."""
    at = np.abs(groups).argmax(axis=-1)[..., None]
    peak = np.take_along_axis(groups, at, axis=-1)[..., 0]
    ends = peak / np.float32(low)
    best, most = np.zeros_like(peak), np.full(peak.shape, -1, np.float32)
    for factor in _FACTORS:
        scale = ends * factor
        q = np.clip(np.rint(_divided(groups, scale[..., None])), low, high)
        along, across = (h * groups * q).sum(axis=-1), (h * q * q).sum(axis=-1)
        gain = _divided(along * along, across)
        is_better = gain > most
        most = np.where(is_better, gain, most)
        best = np.where(is_better, _divided(along, across), best)
    return best


def _best_line(groups: Float32, h: Float32, high: int, *, below: bool) -> tuple[Float32, Float32]:
    """Scale and minimum of each group [..., size]; ``below``: the minimum may not exceed 0."""
    least, top = groups.min(axis=-1), groups.max(axis=-1)
    if below:
        least = np.minimum(least, 0)
    span = np.maximum(top - least, 0)
    scale, minimum = span / high, least
    error = np.full(span.shape, np.inf, np.float32)
    sum_h, sum_w = np.broadcast_to(h, groups.shape).sum(axis=-1), (h * groups).sum(axis=-1)
    for factor in _FACTORS:
        step = span * factor / high
        q = np.clip(np.rint(_divided(groups - least[..., None], step[..., None])), 0, high)
        sum_q, sum_qq = (h * q).sum(axis=-1), (h * q * q).sum(axis=-1)
        sum_wq = (h * groups * q).sum(axis=-1)
        free = _divided(sum_h * sum_wq - sum_w * sum_q, sum_h * sum_qq - sum_q * sum_q)
        base = _divided(sum_w - free * sum_q, sum_h)
        if below:
            free = np.where(base > 0, _divided(sum_wq, sum_qq), free)
            base = np.minimum(base, 0)
        miss = groups - free[..., None] * q - base[..., None]
        now = (h * miss * miss).sum(axis=-1)
        is_better = (now < error) & (free > 0)
        error = np.where(is_better, now, error)
        scale, minimum = np.where(is_better, free, scale), np.where(is_better, base, minimum)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _symmetric(low: int, high: int) -> Callable[[Float32, Float32], Grid]:
    def fitted(weights: Float32, h: Float32) -> Grid:
        d = _half(_best_scale(weights, h, low, high))[:, None]
        step = np.broadcast_to(d, weights.shape)
        return Grid(step, np.zeros_like(weights), low, high, Unpacked(_none(weights), d))

    return fitted


def _with_minimum(high: int) -> Callable[[Float32, Float32], Grid]:
    def fitted(weights: Float32, h: Float32) -> Grid:
        scale, minimum = _best_line(weights, h, high, below=False)
        d, m = _half(scale)[:, None], _half(minimum)[:, None]
        step, offset = (np.broadcast_to(x, weights.shape) for x in (d, -m))
        return Grid(step, offset, 0, high, Unpacked(_none(weights), d, m=m))

    return fitted


def _with_sub_mins(high: int, size: int, most: int) -> Callable[[Float32, Float32], Grid]:
    def fitted(weights: Float32, h: Float32) -> Grid:
        groups, mine = weights.reshape(len(weights), -1, size), h.reshape(-1, size)
        scale, minimum = _best_line(groups, mine, high, below=True)
        d, s = _two_levels(scale, most)
        dmin, m = _two_levels(-minimum, most)
        step, offset = (
            np.repeat((spread(x, y.shape[1]) * y).astype(np.float32), size, axis=1)
            for x, y in ((d, s), (dmin, m))
        )
        parts = Unpacked(_none(weights), d, sub_scale=s, dmin=dmin, sub_min=m)
        return Grid(step, offset, 0, high, parts)

    return fitted


def _q6_k(weights: Float32, h: Float32) -> Grid:
    scale = _best_scale(weights.reshape(len(weights), -1, 16), h.reshape(-1, 16), -32, 31)
    most = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)
    d = _half(most / np.float32(-128))
    s = np.clip(np.rint(_divided(scale, d)), -128, 127).astype(np.int32)
    step = np.repeat((d * s).astype(np.float32), 16, axis=1)
    return Grid(step, np.zeros_like(weights), -32, 31, Unpacked(_none(weights), d, sub_scale=s))


def _two_levels(values: Float32, most: int) -> tuple[Float32, Int32]:
    """One float16 and integers up to ``most`` whose products come near the values."""
    d = _half(values.max(axis=1, keepdims=True) / most)
    return d, np.clip(np.rint(_divided(values, d)), 0, most).astype(np.int32)


def _none(weights: Float32) -> Int8:
    return np.zeros((len(weights), 0), np.int8)


_FIT: dict[BlockType, Callable[[Float32, Float32], Grid]] = {
    BlockType.Q8_0: _symmetric(-127, 127),
    BlockType.Q5_0: _symmetric(-16, 15),
    BlockType.Q4_0: _symmetric(-8, 7),
    BlockType.Q5_1: _with_minimum(31),
    BlockType.Q4_1: _with_minimum(15),
    BlockType.Q4_K: _with_sub_mins(15, 32, 63),
    BlockType.Q5_K: _with_sub_mins(31, 32, 63),
    BlockType.Q2_K: _with_sub_mins(3, 16, 15),
    BlockType.Q6_K: _q6_k,
}
