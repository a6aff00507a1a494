"""A segment times rows, as the kernels sum it: exact integers in a group, then one chain of fma.

Not here: bias or residual (``reference``). Always true: an output depends on its own row of the
activations and of the weight alone, in the order of k.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.reference_math import QuantizedRows, fma

if TYPE_CHECKING:
    import numpy.typing as npt

    from insitu.kernels.block_parts import Unpacked
    from insitu.kernels.blocks import BlockType

    Float32 = npt.NDArray[np.float32]


def multiply_floats(x: Float32, weight: Float32) -> Float32:
    """Float rows: one fma chain over k. x [rows, k], weight [n, k] to [rows, n]."""
    acc = np.zeros((len(x), len(weight)), np.float32)
    for k in range(x.shape[1]):
        acc = fma(weight[None, :, k], x[:, None, k], acc)
    return acc


def multiply_quantized(block_type: BlockType, x: QuantizedRows, weight: Unpacked) -> Float32:
    """Quantised rows times quantised weights: [rows, n]."""
    group = block_type.activation_group
    acc = np.zeros((len(x.q), len(weight.q)), np.float32)
    for g in range(x.scale.shape[1]):
        columns = slice(g * group, (g + 1) * group)
        a, scale = x.q[:, columns], x.scale[:, g, None]
        dot = _dot(a, _scaled(weight, g, group))
        acc = fma(dot, weight.d[None, :, g] * scale, acc)
        if weight.m is not None:
            sums = a.sum(axis=1, dtype=np.int32).astype(np.float32)[:, None]
            acc = fma(weight.m[None, :, g], scale * sums, acc)
        if weight.dmin is not None and weight.sub_min is not None:
            count = weight.sub_min.shape[1] * group // weight.q.shape[1]
            sums = a.reshape(len(a), count, -1).sum(axis=2, dtype=np.int32)
            minimum = _dot(sums, weight.sub_min[:, g * count : (g + 1) * count])
            acc = fma(-minimum, weight.dmin[None, :, g] * scale, acc)
    return acc


def _scaled(weight: Unpacked, g: int, group: int) -> npt.NDArray[np.int32]:
    """One group's integers [n, group], times their integer sub-scales where there are any."""
    q = weight.q[:, g * group : (g + 1) * group]
    if weight.sub_scale is None:
        return q.astype(np.int32)
    per_group = weight.sub_scale.shape[1] * group // weight.q.shape[1]
    scales = weight.sub_scale[:, g * per_group : (g + 1) * per_group]
    return q.astype(np.int32) * np.repeat(scales, group // per_group, axis=1)


def _dot(a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> Float32:
    """Exact integer dot products (float64 holds every partial sum), rounded once to float32."""
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(np.float32)
