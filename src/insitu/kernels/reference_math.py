"""The kernels' arithmetic in NumPy: fused multiply-add, sixteen lanes, our exp, int8 rows.

Not here: operators. Always true: every step rounds to float32 where a kernel does; a fused
multiply-add goes through float64, where it is exact but for a rare second rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
LANES = 16
WORTH_SHIFT = np.float32(0.05)  # of a row's sum of its groups' largest magnitudes, squared
F16_MAX = np.float32(65504)
# Cephes-style coefficients of e^r, highest power first; ln 2 in two parts.
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1)
_LN2_HIGH, _LN2_LOW = np.float32(-0.693359375), np.float32(2.12194440e-4)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """Rows as integers with one float32 scale per group of inputs."""

    q: npt.NDArray[np.int16]  # [rows, k]; int8, but to 254 where a group has a zero point
    scale: Float32  # [rows, k / group]


Operand = Float32 | np.float32


def fma(a: Operand, b: Operand, c: Operand) -> Float32:
    """a * b + c, rounded once."""
    product = np.multiply(a, b, dtype=np.float64)  # exact: 24 + 24 bits fit 53
    product = product + c
    return np.asarray(product).astype(np.float32)


def reduce_lanes(lanes: Float32) -> Float32:
    """Sum the last axis of sixteen: lane i + lane (i + 8), then + 4, + 2, + 1."""
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes[..., 0]


def in_lanes(x: Float32) -> Float32:
    """[..., width] to [..., ceil(width / 16), 16], missing elements 0."""
    spare = -x.shape[-1] % LANES
    if spare:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], spare), np.float32)], axis=-1)
    return x.reshape(*x.shape[:-1], -1, LANES)


def lane_sum(x: Float32) -> Float32:
    """Sum the last axis: element i goes to lane i mod 16 in order, then the tree."""
    groups = in_lanes(x)
    total = np.zeros((*groups.shape[:-2], LANES), np.float32)
    for group in range(groups.shape[-2]):
        total = total + groups[..., group, :]
    return reduce_lanes(total)


def exp(x: Float32) -> Float32:
    """e^x as the kernels compute it: clamped below at -87, infinite over 88.37."""
    over = x > np.float32(88.37)
    x = np.where(x < np.float32(-87), np.float32(-87), np.where(over, np.float32(88.37), x))
    n: Float32 = np.rint(x * np.float32(1.44269504))
    r = fma(n, _LN2_HIGH, x)
    r = fma(n, _LN2_LOW, r)
    p = np.full_like(r, _EXP[0])
    for coefficient in (*_EXP[1:], 5.0000001201e-1):
        p = fma(p, r, np.float32(coefficient))
    p = fma(r * r, p, r) + np.float32(1)
    power = np.where(np.isnan(n), 0, n).astype(np.int32)
    return np.where(over, np.float32(np.inf), np.ldexp(p, power)).astype(np.float32)


# An odd polynomial of tanh near zero, highest power first.
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def tanh(x: Float32) -> Float32:
    """As the kernels compute it: a polynomial below 0.625, from e^2|x| beyond."""
    magnitude = np.abs(x)
    with np.errstate(all="ignore"):  # far from zero the polynomial is not looked at
        square = x * x
        p = np.full_like(x, _TANH[0])
        for coefficient in _TANH[1:]:
            p = fma(p, square, np.float32(coefficient))
        near = fma(p * square, x, x)
    far = np.float32(1) - np.float32(2) / (exp(magnitude + magnitude) + np.float32(1))
    return np.where(magnitude < np.float32(0.625), near, np.where(x < 0, -far, far))


_GELU_SLOPE, _GELU_CUBE = np.float32(0.797884561), np.float32(0.044715)  # the first: sqrt(2 / pi)


def gelu(x: Float32) -> Float32:
    """Its tanh form."""
    inner = _GELU_SLOPE * (x + _GELU_CUBE * x * x * x)
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + np.tanh(inner)))


def gelu_in_order(x: Float32) -> Float32:
    """The same as the kernels compute it."""
    inner = _GELU_SLOPE * x * fma(x * x, _GELU_CUBE, np.float32(1))
    return np.asarray(np.float32(0.5) * x * (np.float32(1) + tanh(inner)))


def quantize(x: Float32, group: int) -> QuantizedRows:
    """One scale per row and group, from the largest magnitude; NaN or Inf gives zero integers."""
    rows = np.ascontiguousarray(x).reshape(len(x), -1, group)
    bits = (rows.view(np.uint32) & np.uint32(0x7FFFFFFF)).max(axis=2)  # NaN > Inf > finite
    largest = bits.view(np.float32)
    scale = largest / np.float32(127)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    usable = np.isfinite(scale) & np.isfinite(inverse)
    scaled = np.rint(rows * np.where(usable, inverse, np.float32(0))[:, :, None])
    q = np.where(usable[:, :, None], scaled, 0).astype(np.int16)
    return QuantizedRows(q.reshape(len(x), -1), scale)


def quantize_inputs(x: Float32, group: int) -> QuantizedRows:
    """A linear's inputs, whole rows: as ``quantize``, but some groups of 32 have a zero point.

    From the least to the greatest value there are 254 steps then, instead of 254 from the largest
    magnitude to its negative. That is done where it matters to the row: where the square of half
    the distance is less than that of the largest magnitude by more than ``WORTH_SHIFT`` of the sum
    of the latter over all the row's groups.
    """
    plain = quantize(x, group)
    if group != 32:
        return plain
    rows = np.ascontiguousarray(x).reshape(len(x), -1, group)
    with np.errstate(all="ignore"):
        above = np.maximum(rows.max(axis=2), np.float32(0))
        below = np.maximum(-rows.min(axis=2), np.float32(0))
        large, small = np.maximum(above, below), np.minimum(above, below)
        span = large + small
        half, inverse = np.float32(0.5) * span, np.float32(254) / span
        total = np.add.accumulate(large * large, axis=1)[:, -1:]  # in the groups' order
        has_shift = large * large - half * half > WORTH_SHIFT * total  # False for NaN
        has_shift &= np.isfinite(span) & np.isfinite(inverse)
        farthest = np.float32(254) - np.rint(small * inverse)
        most = farthest[:, :, None]
        q = np.clip(np.rint(rows * inverse[:, :, None]), -most, most)
    chosen = np.where(has_shift[:, :, None], q, plain.q.reshape(rows.shape))
    scale = np.where(has_shift, span / np.float32(254), plain.scale)
    return QuantizedRows(chosen.astype(np.int16).reshape(len(x), -1), scale)


def store_f16(x: Float32) -> npt.NDArray[np.float16]:
    """To half precision, nearest even; finite values too large become the largest half."""
    saturated = np.where(np.isfinite(x), np.clip(x, -F16_MAX, F16_MAX), x)
    return saturated.astype(np.float16)


def round_bf16(x: Float32) -> Float32:
    """To bfloat16, nearest even, and back; every NaN stays one."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    kept = np.where(np.isnan(x), bits | np.uint32(0x400000), rounded)
    return (kept & np.uint32(0xFFFF0000)).view(np.float32)
