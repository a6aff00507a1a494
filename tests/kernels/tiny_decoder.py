"""A random two-layer decoder and batches over it: what the tests of the native executor run.

Not here: any check. Always true: the same seed gives the same weights; block ids are shuffled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import BlockType
from insitu.kernels.encode import encode
from insitu.kernels.kv_layout import KVDtype, KVLayout
from insitu.kernels.native import Limits, Native
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.passes import lower
from insitu.kernels.program import Program
from insitu.kernels.sampling import EditArrays, MaskArrays, SamplingArrays

if TYPE_CHECKING:
    from collections.abc import Sequence

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes; ``types`` are the block types of q, k, v, o, gate/up, down, head."""

    vocab: int = 300
    hidden: int = 256
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 48
    inner: int = 512
    layers: int = 2
    block_size: int = 16
    kv_dtype: KVDtype = "f16"
    window: int = 0
    soft_cap: float = 0.0
    pairing: str = "halves"
    bias: bool = True
    types: tuple[BlockType, ...] = (
        BlockType.Q4_K,
        BlockType.Q4_0,
        BlockType.Q6_K,
        BlockType.Q8_0,
        BlockType.Q4_1,
        BlockType.Q5_0,
        BlockType.Q8_0,
    )

    @property
    def kv(self) -> KVLayout:
        """The cache's layout."""
        return KVLayout(self.layers, self.kv_heads, self.head_dim, self.block_size, self.kv_dtype)


LIMITS = Limits(
    max_num_tokens=700, max_num_logit_rows=16, max_num_seqs=8, num_blocks=128, max_blocks_per_seq=64
)


def linear(
    rng: np.random.Generator,
    types: Sequence[BlockType],
    n: Sequence[int],
    k: int,
    *,
    bias: bool = False,
) -> PackedLinear:
    """Random weights of about unit gain."""
    segments = []
    for index, (block_type, rows) in enumerate(zip(types, n, strict=True)):
        # Where a row is not whole blocks of a K type, the nearest type of 32 stands in.
        fits = BlockType.Q8_0 if k % block_type.block_size else block_type
        weights = rng.standard_normal((rows, k), np.float32) / np.float32(np.sqrt(k))
        segments.append(Segment(f"w{index}", fits, rows, k, encode(fits, weights)))
    offsets = rng.standard_normal(sum(n), np.float32) * np.float32(0.1) if bias else None
    return PackedLinear(segments, offsets)


def program(shape: Shape, seed: int = 0, *, poison: int | None = None) -> Program:
    """Before the passes; the embedding of token ``poison`` is NaN."""
    rng = np.random.default_rng(seed)
    q_type, k_type, v_type, o_type, up_type, down_type, head_type = shape.types
    hidden, width = shape.hidden, shape.heads * shape.head_dim
    kv_width = shape.kv_heads * shape.head_dim
    table = rng.standard_normal((shape.vocab, hidden), np.float32)
    if poison is not None:
        table[poison] = np.nan
    f32 = BlockType.F32
    embedding = PackedLinear([Segment("embedding", f32, shape.vocab, hidden, encode(f32, table))])
    p = Program()
    x = p.embed(embedding, p.token_ids)
    angles = p.rope_angles(shape.head_dim, 10000.0)
    norms = [
        1 + rng.standard_normal(hidden, np.float32) * np.float32(0.1)
        for _ in range(2 * shape.layers + 1)
    ]
    for layer in range(shape.layers):
        h = p.rms_norm(x, norms[2 * layer], 1e-5)
        sizes = [width, kv_width, kv_width]
        qkv = linear(rng, (q_type, k_type, v_type), sizes, hidden, bias=shape.bias)
        q, k, v = p.linear(h, qkv).split(sizes)
        q = p.rope(q, angles, shape.heads, shape.head_dim, shape.pairing)
        k = p.rope(k, angles, shape.kv_heads, shape.head_dim, shape.pairing)
        a = p.attention(
            q,
            k,
            v,
            layer=layer,
            num_heads=shape.heads,
            num_kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            scale=shape.head_dim**-0.5,
            window=shape.window if layer % 2 else 0,
            soft_cap=shape.soft_cap,
        )
        x = p.add(x, p.linear(a, linear(rng, [o_type], [hidden], width)))
        h = p.rms_norm(x, norms[2 * layer + 1], 1e-5)
        up = p.linear(h, linear(rng, [up_type, up_type], [shape.inner, shape.inner], hidden))
        down = linear(rng, [down_type], [hidden], shape.inner)
        x = p.add(x, p.linear(p.gated("silu", up), down))
    pooled = p.rms_norm(p.take(x, p.pooled_rows), norms[-1], 1e-5)
    rows = p.take(p.rms_norm(x, norms[-1], 1e-5), p.logit_rows)
    head = linear(rng, [head_type], [shape.vocab], hidden)
    return p.output(p.linear(rows, head), pooled)


def lowered(shape: Shape, seed: int = 0, *, poison: int | None = None) -> Program:
    """After the passes."""
    return lower(program(shape, seed, poison=poison))


def native(
    shape: Shape,
    *,
    num_threads: int = 2,
    isa: str | None = None,
    limits: Limits = LIMITS,
    poison: int | None = None,
) -> Native:
    """A fresh executor over fresh weights (the same for every call with the same shape)."""
    return Native(
        lowered(shape, poison=poison), kv=shape.kv, limits=limits, num_threads=num_threads, isa=isa
    )


@dataclass
class ArrayBatch:
    """The arrays of one step."""

    token_ids: Int32
    positions: Int32
    slot_mapping: Int32
    block_table: Int32
    query_start_loc: Int32
    seq_lens: Int32
    logit_rows: Int32
    pooled_rows: Int32 = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True)
class Work:
    """Tokens [start, stop) of a sequence that owns ``blocks``; logits of its rows ``wanted``.

    And pooled rows of ``pooled``.
    """

    tokens: Int32
    start: int
    stop: int
    blocks: Sequence[int]
    wanted: Sequence[int] = (-1,)
    pooled: Sequence[int] = ()


def batch_of(works: Sequence[Work], block_size: int) -> ArrayBatch:
    """The batch in which these works run together, in order."""
    ids, positions, slots, starts = [], [], [], [0]
    logit_rows: list[int] = []
    pooled_rows: list[int] = []
    width = max(len(w.blocks) for w in works)
    table = np.zeros((len(works), width), np.int32)
    for index, w in enumerate(works):
        table[index, : len(w.blocks)] = w.blocks
        for position in range(w.start, w.stop):
            ids.append(int(w.tokens[position]))
            positions.append(position)
            slots.append(w.blocks[position // block_size] * block_size + position % block_size)
        first, num = starts[-1], w.stop - w.start
        logit_rows.extend(first + range(num)[i] for i in w.wanted)
        pooled_rows.extend(first + range(num)[i] for i in w.pooled)
        starts.append(first + num)
    return ArrayBatch(
        np.array(ids, np.int32),
        np.array(positions, np.int32),
        np.array(slots, np.int32),
        table,
        np.array(starts, np.int32),
        np.array([w.stop for w in works], np.int32),
        np.array(logit_rows, np.int32),
        np.array(pooled_rows, np.int32),
    )


def blocks_for(rng: np.random.Generator, num: int, among: Sequence[int]) -> list[int]:
    """``num`` of the ids in ``among``, shuffled."""
    return [int(b) for b in rng.permutation(np.array(among))[:num]]


def sampling(
    rows: int,
    *,
    edits: EditArrays | None = None,
    masks: MaskArrays | None = None,
    **changed: Any,
) -> SamplingArrays:
    """Greedy, but for what is given: a number for all rows or one a row."""
    return replace(SamplingArrays.of(rows, **changed), edits=edits, masks=masks)
