"""A decoder's tensors as its twin in the other format holds them, made when they are asked for.

Rows are whole blocks, so that to order, join or stack them loses nothing: only a tensor that is to
be transposed, or joined from rows of several block types, becomes float32.

Not here: which names (families' twins have them), or numbers of the model (``twins``).

Always true: what a tensor decodes to is what the model it was taken from multiplies by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.blocks import BlockType, decode
from insitu.models.weights import MlpWeights
from insitu.weights.errors import UnsupportedModelError
from insitu.weights.tensors import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from insitu.kernels.block_parts import Bytes, Float32
    from insitu.kernels.pack import Experts, PackedLinear, Segment
    from insitu.models.names import MoeNames, TensorNames
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import MoeWeights, Norm, Weights

    Order = npt.NDArray[np.int64]
    Tensor = tuple[TensorInfo, Callable[[], Bytes]]


@dataclass(frozen=True, slots=True)
class Rows:
    """A matrix: ``make`` gives its blocks, [n, bytes of a row]."""

    block_type: BlockType
    n: int
    k: int
    make: Callable[[], Bytes]

    def as_floats(self) -> Rows:
        """The same numbers as float32."""
        if self.block_type is BlockType.F32:
            return self

        def make() -> Bytes:
            return decode(self.block_type, self.make(), self.n, self.k).view(np.uint8)

        return Rows(BlockType.F32, self.n, self.k, make)

    def cut(self, sizes: Sequence[int]) -> list[Rows]:
        """Neighbouring rows, so many each."""
        ends = np.cumsum(sizes)
        assert ends[-1] == self.n

        def part(start: int, stop: int) -> Rows:
            return Rows(self.block_type, stop - start, self.k, lambda: self.make()[start:stop])

        return [part(int(end) - size, int(end)) for size, end in zip(sizes, ends, strict=True)]

    def ordered(self, order: Callable[[], Order | None]) -> Rows:
        """Rows in another order, which is asked for late; None: this one."""

        def make() -> Bytes:
            wanted = order()
            return self.make() if wanted is None else self.make()[wanted]

        return Rows(self.block_type, self.n, self.k, make)


def _of(segment: Segment) -> Rows:
    def make() -> Bytes:
        return np.frombuffer(segment.raw(), np.uint8).reshape(segment.n, -1)

    return Rows(segment.block_type, segment.n, segment.k, make)


def _joined(parts: Sequence[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    if len({part.block_type for part in parts}) > 1:
        parts = [part.as_floats() for part in parts]
    n = sum(part.n for part in parts)
    return Rows(
        parts[0].block_type, n, parts[0].k, lambda: np.concatenate([part.make() for part in parts])
    )


class TwinTensors:
    """Every tensor of a decoder, under the names of the other format.

    ``turn``: a new order of a head's rows in query and key, set before anything is made.
    """

    def __init__(self, path: Path, spec: DecoderSpec, weights: Weights, names: TensorNames) -> None:
        self._path, self._spec, self._weights, self._names = path, spec, weights, names
        self.turn: Order | None = None

    def all(self) -> dict[str, Tensor]:
        """By name."""
        return {info.name: (info, make) for info, make in self._each()}

    def _each(self) -> Iterator[Tensor]:
        names, weights = self._names, self._weights
        yield self._matrix(names.token_embedding, _whole(weights.token_embedding))
        if weights.position_embedding is not None and names.position_embedding is not None:
            yield self._matrix(names.position_embedding, _whole(weights.position_embedding))
        for index, layer in enumerate(weights.layers):
            prefix = names.layer.format(index)
            for name, norm in (
                (names.attention_norm, layer.attention_norm),
                (names.q_norm, layer.attention.q_norm),
                (names.k_norm, layer.attention.k_norm),
                (names.post_attention_norm, layer.post_attention_norm),
                (names.mlp_norm, layer.mlp_norm),
                (names.post_mlp_norm, layer.post_mlp_norm),
            ):
                if name is not None and norm is not None:
                    yield from self._norm(prefix + name, norm)
            yield from self._qkv(prefix, layer.attention.qkv)
            yield from self._linear(prefix, (names.o_proj,), layer.attention.o_proj, None)
            if isinstance(layer.mlp, MlpWeights):
                yield from self._dense(prefix, names.gate_up, names.down_proj, layer.mlp)
            else:
                assert names.moe is not None
                yield from self._moe(prefix, names.moe, layer.mlp)
        yield from self._norm(names.final_norm, weights.final_norm)
        if not weights.is_tied:
            yield self._matrix(names.lm_head, _whole(weights.lm_head))

    def _qkv(self, prefix: str, linear: PackedLinear) -> Iterator[Tensor]:
        """Query, key and value, of which the first two turn."""
        attention = self._spec.attention
        heads = (attention.num_heads, attention.num_kv_heads, 0)

        def order(count: int) -> Callable[[], Order | None]:
            def late() -> Order | None:
                if self.turn is None or not count:
                    return None
                starts = np.arange(count)[:, None] * attention.head_dim
                return (starts + self.turn).reshape(-1)

            return late

        orders = [order(count) for count in heads]
        yield from self._linear(prefix, self._names.qkv, linear, attention.qkv_sizes, orders)

    def _dense(
        self, prefix: str, gate_up: tuple[str, ...], down: str, mlp: MlpWeights
    ) -> Iterator[Tensor]:
        sizes = [mlp.gate_up.n // 2] * 2 if mlp.gate_up.n == 2 * mlp.down_proj.k else None
        yield from self._linear(prefix, gate_up, mlp.gate_up, sizes)
        yield from self._linear(prefix, (down,), mlp.down_proj, None)

    def _moe(self, prefix: str, names: MoeNames, moe: MoeWeights) -> Iterator[Tensor]:
        yield from self._linear(prefix, (names.router,), moe.router, None)
        yield from self._experts(prefix, names, moe.experts)
        if moe.shared is not None:
            yield from self._dense(prefix, names.shared_gate_up, names.shared_down_proj, moe.shared)
        if moe.shared_gate is not None and names.shared_gate is not None:
            rows = _whole(moe.shared_gate).as_floats()
            shape = (rows.k,) if names.is_stacked else (1, rows.k)
            yield _tensor(f"{prefix}{names.shared_gate}.weight", rows, shape)

    def _experts(self, prefix: str, names: MoeNames, experts: Experts) -> Iterator[Tensor]:
        down = [_whole(linear) for linear in experts.down]
        both = [[_of(segment) for segment in linear.segments] for linear in experts.gate_up]
        if len(names.gate_up) == 1:
            both = [[_joined(parts)] for parts in both]
        stacks = [*zip(*both, strict=True), down]
        for name, stack in zip((*names.gate_up, names.down_proj), stacks, strict=True):
            if names.is_stacked:
                rows = _joined(stack)
                shape = (len(stack), rows.n // len(stack), rows.k)
                yield _tensor(f"{prefix}{name}.weight", rows, shape)
                continue
            for index, rows in enumerate(stack):
                yield self._matrix(prefix + name.format(index), rows)

    def _linear(
        self,
        prefix: str,
        names: tuple[str, ...],
        linear: PackedLinear,
        sizes: Sequence[int] | None,
        orders: Sequence[Callable[[], Order | None]] | None = None,
    ) -> Iterator[Tensor]:
        """A linear's parts of ``sizes`` rows, one a name or all under one, with their biases."""
        parts = [_of(segment) for segment in linear.segments]
        wanted = list(sizes or [linear.n])
        if [part.n for part in parts] != wanted:
            parts = _joined(parts).cut(wanted)
        biases = [] if linear.bias is None else np.split(linear.bias, np.cumsum(wanted)[:-1])
        late = orders or [lambda: None] * len(parts)
        parts = [part.ordered(order) for part, order in zip(parts, late, strict=True)]
        offsets = [
            _of_floats(bias).ordered(order)
            for bias, order in zip(biases, late if biases else [], strict=True)
        ]
        if len(names) == 1:
            parts, offsets = [_joined(parts)], [_joined(offsets)] if offsets else []
        for name, part in zip(names, parts, strict=True):
            yield self._matrix(prefix + name, part, is_transposed=self._names.is_transposed)
        for name, offset in zip(names, offsets, strict=False):
            yield _tensor(f"{prefix}{name}.bias", offset, (offset.n,))

    def _matrix(self, name: str, rows: Rows, *, is_transposed: bool = False) -> Tensor:
        if not is_transposed:
            return _tensor(f"{name}.weight", rows, (rows.n, rows.k))
        floats = rows.as_floats()

        def make() -> Bytes:
            values = floats.make().view(np.float32)
            return np.ascontiguousarray(values.T).view(np.uint8)

        turned = Rows(BlockType.F32, rows.k, rows.n, make)
        return _tensor(f"{name}.weight", turned, (rows.k, rows.n))

    def _norm(self, name: str, norm: Norm) -> Iterator[Tensor]:
        """Factors, less what the other format adds to them: to the bit, or not at all."""
        offset = np.float32(self._names.norm_offset)
        factors = norm.weight - offset
        if not np.array_equal(factors + offset, norm.weight):
            message = f"holds a factor that is not {offset:g} more than any float32"
            raise UnsupportedModelError(self._path, f"tensor {name}.weight", message)
        yield _vector(f"{name}.weight", factors)
        if norm.bias is not None:
            yield _vector(f"{name}.bias", norm.bias)


def _whole(linear: PackedLinear) -> Rows:
    return _joined([_of(segment) for segment in linear.segments])


def _of_floats(values: Float32) -> Rows:
    blocks = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(len(values), 4)
    return Rows(BlockType.F32, len(values), 1, lambda: blocks)


def _vector(name: str, values: Float32) -> Tensor:
    return _tensor(name, _of_floats(values), (len(values),))


def _tensor(name: str, rows: Rows, shape: tuple[int, ...]) -> Tensor:
    num_bytes = rows.n * rows.block_type.row_bytes(rows.k)
    return TensorInfo(name, shape, rows.block_type, num_bytes, 0, is_made=True), rows.make
