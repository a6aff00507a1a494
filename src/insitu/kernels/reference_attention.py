"""The KV cache and causal attention over it, plainly and as the kernels sum it.

Not here: native's block layout; a slot is a row here. Always true: keys and values are read back as
stored, and nothing depends on block ids or on who else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.reference_math import (
    exp,
    fma,
    lane_sum,
    quantize,
    round_bf16,
    store_f16,
    tanh,
)

if TYPE_CHECKING:
    from insitu.kernels.kv_layout import KVLayout

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]
CHUNK = 256  # absolute positions


@dataclass(frozen=True, slots=True)
class Stored:
    """Keys or values as stored, widened: ``x`` [tokens, heads, dim] times ``scale``."""

    x: Float32
    scale: Float32 | None = None  # [tokens, heads]: int8 only

    @property
    def plain(self) -> Float32:
        """The numbers meant."""
        return self.x if self.scale is None else self.x * self.scale[:, :, None]

    def repeated(self, times: int) -> Stored:
        """Every head ``times`` in a row: one a query head."""
        scale = None if self.scale is None else np.repeat(self.scale, times, axis=1)
        return Stored(np.repeat(self.x, times, axis=1), scale)

    def chunk(self, start: int) -> Stored:
        """The tokens of the chunk that begins at ``start``."""
        part = slice(start, start + CHUNK)
        return Stored(self.x[part], None if self.scale is None else self.scale[part])


@dataclass(frozen=True, slots=True)
class Attending:
    """What attention does beyond softmax(q k) v."""

    window: int = 0  # the last positions attended to, a token's own included; 0: all
    soft_cap: float = 0.0  # scores become cap * tanh(score / cap); 0: as they are

    def is_kept(self, positions: Int32, num_keys: int) -> npt.NDArray[np.bool_]:
        """[rows, num_keys]: which keys a query at each position attends to."""
        keys = np.arange(num_keys)
        kept = keys <= positions[:, None]
        if self.window:
            kept &= keys > positions[:, None] - self.window
        return kept


class Cache:
    """Keys and values of every layer, a row a slot, as stored."""

    def __init__(self, kv: KVLayout) -> None:
        self.block_size = kv.block_size
        self._dtype = kv.dtype
        rows = (kv.num_layers, 2, 0, kv.num_kv_heads)
        self._rows: Float32 = np.zeros((*rows, kv.head_dim), np.float32)
        self._scales: Float32 = np.zeros(rows, np.float32)

    def write(self, layer: int, slots: Int32, k: Float32, v: Float32) -> None:
        """Store [T, num_kv_heads * head_dim] keys and values at their slots."""
        missing = int(slots.max(initial=-1)) + 1 - self._rows.shape[2]
        if missing > 0:
            more = max(missing, self._rows.shape[2])
            self._rows, self._scales = _grown(self._rows, more), _grown(self._scales, more)
        heads, dim = self._rows.shape[3:]
        for index, x in enumerate((k, v)):
            stored = self._stored(np.ascontiguousarray(x).reshape(-1, dim))
            self._rows[layer, index, slots] = stored.x.reshape(-1, heads, dim)
            if stored.scale is not None:
                self._scales[layer, index, slots] = stored.scale.reshape(-1, heads)

    def _stored(self, x: Float32) -> Stored:
        """Rows of one token and head each."""
        if self._dtype == "int8":
            rows = quantize(x, x.shape[1])
            return Stored(rows.q.astype(np.float32), rows.scale)
        if self._dtype == "bf16":
            return Stored(round_bf16(x))
        return Stored(store_f16(x).astype(np.float32) if self._dtype == "f16" else x)

    def read(self, layer: int, block_ids: Int32, num_tokens: int) -> tuple[Stored, Stored]:
        """A sequence's first keys and values."""
        positions = np.arange(num_tokens)
        slots = block_ids[positions // self.block_size] * self.block_size
        slots = slots + positions % self.block_size
        has_scale = self._dtype == "int8"
        keys, values = (
            Stored(
                self._rows[layer, index, slots],
                self._scales[layer, index, slots] if has_scale else None,
            )
            for index in (0, 1)
        )
        return keys, values


def _grown(rows: Float32, more: int) -> Float32:
    """Zeros for ``more`` slots behind those there are."""
    shape = (*rows.shape[:2], more, *rows.shape[3:])
    return np.concatenate([rows, np.zeros(shape, np.float32)], axis=2)


def attend_plainly(
    q: Float32, k: Stored, v: Stored, positions: Int32, how: Attending = Attending()
) -> Float32:
    """Softmax attention. q [rows, heads, dim] is scaled; k and v of as many heads."""
    scores = np.einsum("rhd,thd->rht", q, k.plain)
    if how.soft_cap:
        scores = how.soft_cap * np.tanh(scores / how.soft_cap)
    is_kept = how.is_kept(positions, len(k.x))
    scores = np.where(is_kept[:, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.asarray(np.einsum("rht,thd->rhd", weights, v.plain), np.float32)


def attend_in_chunks(
    q: Float32, k: Stored, v: Stored, positions: Int32, how: Attending = Attending()
) -> Float32:
    """The same in kernel order: fixed chunks of positions, folded in order."""
    is_kept = how.is_kept(positions, len(k.x))
    state = None
    for start in range(0, len(k.x), CHUNK):
        kept = is_kept[:, start : start + CHUNK]
        part = _attend_chunk(q, k.chunk(start), v.chunk(start), kept, how.soft_cap)
        is_touched = np.asarray(kept.any(axis=1))
        state = part if state is None else _fold(state, part, is_touched)
    assert state is not None
    _, total, out = state
    return np.asarray(out * (np.float32(1) / total)[:, :, None])


_Part = tuple[Float32, Float32, Float32]  # maximum, sum [rows, heads]; output [rows, heads, dim]


def _attend_chunk(
    q: Float32, k: Stored, v: Stored, is_kept: npt.NDArray[np.bool_], soft_cap: float
) -> _Part:
    even = np.zeros((*q.shape[:2], len(k.x)), np.float32)
    odd = even.copy()
    for d in range(0, q.shape[2], 2):
        even = fma(q[:, :, None, d], k.x[:, :, d].T[None], even)
        odd = fma(q[:, :, None, d + 1], k.x[:, :, d + 1].T[None], odd)
    scores = even + odd
    if k.scale is not None:
        scores = scores * k.scale.T[None]
    if soft_cap:
        cap = np.float32(soft_cap)
        scores = tanh(scores * (np.float32(1) / cap)) * cap
    kept = is_kept[:, None, :]
    scores = np.where(kept, scores, np.float32(-np.inf))
    maximum = np.fmax.reduce(scores, axis=2)
    with np.errstate(invalid="ignore"):  # -inf - -inf, where a chunk is wholly masked
        weights = np.where(kept, exp(scores - maximum[:, :, None]), np.float32(0))
    total = lane_sum(weights)
    if v.scale is not None:
        weights = weights * v.scale.T[None]
    out = np.zeros_like(q)
    for t in range(len(v.x)):
        added = fma(v.x[None, t], weights[:, :, t, None], out)
        out = np.where(is_kept[:, t, None, None], added, out)
    return maximum, total, out


def _fold(state: _Part, part: _Part, is_touched: npt.NDArray[np.bool_]) -> _Part:
    """Add a chunk to what came before, rescaling the one with the lower maximum.

    A row's first chunk is its state; one that is wholly masked for a row leaves the row alone.
    """
    high, low = np.maximum(state[0], part[0]), np.minimum(state[0], part[0])
    with np.errstate(invalid="ignore"):
        weight = exp(low - high)
    is_higher = part[0] > state[0]
    total = np.where(is_higher, fma(state[1], weight, part[1]), fma(part[1], weight, state[1]))
    w, higher = weight[:, :, None], is_higher[:, :, None]
    out = np.where(higher, fma(state[2], w, part[2]), fma(part[2], w, state[2]))
    folded = (high, total, out)
    is_first = state[1] == 0
    touched = np.broadcast_to(is_touched[:, None], is_first.shape)
    chosen = []
    for before, added, both in zip(state, part, folded, strict=True):
        extra = (slice(None), slice(None), *([None] * (before.ndim - 2)))
        chosen.append(np.where(touched[extra], np.where(is_first[extra], added, both), before))
    maximum, total, out = chosen
    return maximum, total, out
