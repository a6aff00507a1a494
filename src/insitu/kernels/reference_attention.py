"""The KV cache and causal attention over it, plainly and as the kernels sum it.

Not here: native's block layout; a slot is a row here. Always true: keys and values are read back as
stored, and nothing depends on block ids or on who else is in the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.reference_math import exp, fma, lane_sum, store_f16

if TYPE_CHECKING:
    from insitu.kernels.kv_layout import KVLayout

Float32 = npt.NDArray[np.float32]
CHUNK = 256  # absolute positions


class Cache:
    """Keys and values of every layer, a row a slot, in the stored type."""

    def __init__(self, kv: KVLayout) -> None:
        self.block_size = kv.block_size
        self._is_f16 = kv.dtype == "f16"
        dtype = np.float16 if self._is_f16 else np.float32
        shape = (kv.num_layers, 2, 0, kv.num_kv_heads, kv.head_dim)
        self._rows: npt.NDArray[np.floating] = np.zeros(shape, dtype)

    def write(self, layer: int, slots: npt.NDArray[np.int32], k: Float32, v: Float32) -> None:
        """Store [T, num_kv_heads * head_dim] keys and values at their slots."""
        shape = list(self._rows.shape)
        missing = int(slots.max(initial=-1)) + 1 - shape[2]
        if missing > 0:
            shape[2] = max(missing, shape[2])
            self._rows = np.concatenate([self._rows, np.zeros(shape, self._rows.dtype)], axis=2)
        for index, x in enumerate((k, v)):
            stored = store_f16(x) if self._is_f16 else x
            self._rows[layer, index, slots] = stored.reshape(len(x), *shape[3:])

    def read(
        self, layer: int, block_ids: npt.NDArray[np.int32], num_tokens: int
    ) -> tuple[Float32, Float32]:
        """A sequence's first keys and values: each [num_tokens, num_kv_heads, head_dim]."""
        positions = np.arange(num_tokens)
        slots = block_ids[positions // self.block_size] * self.block_size
        slots = slots + positions % self.block_size
        keys, values = self._rows[layer][:, slots]
        return np.asarray(keys, np.float32), np.asarray(values, np.float32)


def attend_plainly(q: Float32, k: Float32, v: Float32, positions: npt.NDArray[np.int32]) -> Float32:
    """Softmax attention. q [rows, heads, dim] is scaled; k and v [tokens, heads, dim]."""
    scores = np.einsum("rhd,thd->rht", q, k)
    is_masked = np.arange(len(k)) > positions[:, None]
    scores = np.where(is_masked[:, None, :], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.asarray(np.einsum("rht,thd->rhd", weights, v), np.float32)


def attend_in_chunks(
    q: Float32, k: Float32, v: Float32, positions: npt.NDArray[np.int32]
) -> Float32:
    """The same in kernel order: fixed chunks of positions, merged in order."""
    parts = []
    for start in range(0, len(k), CHUNK):
        chunk = slice(start, start + CHUNK)
        is_kept = np.arange(start, min(start + CHUNK, len(k))) <= positions[:, None]
        parts.append(_attend_chunk(q, k[chunk], v[chunk], is_kept))
    if len(parts) == 1:
        _, total, out = parts[0]
        return np.asarray(out * (np.float32(1) / total)[:, :, None])
    return _merge(parts)


_Part = tuple[Float32, Float32, Float32]  # maximum, sum [rows, heads]; output [rows, heads, dim]


def _attend_chunk(q: Float32, k: Float32, v: Float32, is_kept: npt.NDArray[np.bool_]) -> _Part:
    even = np.zeros((*q.shape[:2], len(k)), np.float32)
    odd = even.copy()
    for d in range(0, q.shape[2], 2):
        even = fma(q[:, :, None, d], k[:, :, d].T[None], even)
        odd = fma(q[:, :, None, d + 1], k[:, :, d + 1].T[None], odd)
    kept = is_kept[:, None, :]
    scores = np.where(kept, even + odd, np.float32(-np.inf))
    maximum = np.fmax.reduce(scores, axis=2)
    weights = np.where(kept, exp(scores - maximum[:, :, None]), np.float32(0))
    out = np.zeros_like(q)
    for t in range(len(k)):
        added = fma(v[None, t], weights[:, :, t, None], out)
        out = np.where(is_kept[:, t, None, None], added, out)
    return maximum, lane_sum(weights), out


def _merge(parts: list[_Part]) -> Float32:
    maxima = np.stack([part[0] for part in parts])
    highest = np.fmax.reduce(maxima, axis=0)
    total, out = np.zeros_like(highest), np.zeros_like(parts[0][2])
    for maximum, part_total, part_out in parts:
        touched = maximum > -np.inf  # a wholly masked chunk leaves the row alone
        weight = exp(maximum - highest)
        total = np.where(touched, fma(part_total, weight, total), total)
        added = fma(part_out, weight[:, :, None], out)
        out = np.where(touched[:, :, None], added, out)
    return np.asarray(out * (np.float32(1) / total)[:, :, None])
