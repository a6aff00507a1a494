"""Quantised rows taken apart: integers and scales, whatever the block type.

Not here: any layout. Always true: a product of scale, sub-scale and integer is exact in float32, so
that the order of multiplication moves no bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The parts of quantised rows: weight = d * sub_scale * q + m - dmin * sub_min.

    Absent factors are 1, absent terms 0. ``q`` is signed, any offset already taken off; types with
    minima have none. One scale serves 32 or 256 weights, one sub-scale 16 or 32.
    """

    q: Int8  # [n, k]
    d: Float32  # [n, k / 32 or k / 256]
    m: Float32 | None = None  # as d
    sub_scale: Int32 | None = None  # [n, k / 16 or k / 32]
    dmin: Float32 | None = None  # as d
    sub_min: Int32 | None = None  # as sub_scale

    def weights(self) -> Float32:
        """Float32 [n, k]."""
        n, k = self.q.shape
        scale = self.d
        if self.sub_scale is not None:
            scale = spread(self.d, self.sub_scale.shape[1]) * self.sub_scale.astype(np.float32)
        out = self.q.reshape(n, scale.shape[1], -1).astype(np.float32)
        out *= scale[:, :, None]
        if self.m is not None:
            out += self.m[:, :, None]
        if self.dmin is not None and self.sub_min is not None:
            minimum = spread(self.dmin, self.sub_min.shape[1]) * self.sub_min.astype(np.float32)
            out -= minimum[:, :, None]
        return out.reshape(n, k)


def spread(values: Float32, columns: int) -> Float32:
    """Each value beside itself, until there are so many columns."""
    return np.repeat(values, columns // values.shape[1], axis=1)


def halves_at(blocks: Bytes, offset: int) -> Float32:
    """The half-precision number at a byte offset of every block: [n, blocks a row]."""
    halves = np.ascontiguousarray(blocks[:, :, offset : offset + 2]).view(np.float16)
    return halves[:, :, 0].astype(np.float32)


def bits(packed: Bytes, width: int) -> Bytes:
    """Every field of ``width`` bits, lowest first: one axis more, [..., 8 / width, bytes]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields: Bytes = (packed[..., None, :] >> shifts) & np.uint8((1 << width) - 1)
    return fields
