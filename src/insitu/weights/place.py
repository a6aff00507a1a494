"""Hand a file's tensors to a model, and hold that every one of them found its place.

Not here: names (families give them) or packing (``kernels``).

Always true: a shape that is handed out was checked; ``finish`` passes only if no tensor is left.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import FLOATS, decode
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.run_types import run_type
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from insitu.weights.tensors import TensorInfo, TensorSource

Float32 = npt.NDArray[np.float32]


class Placement:
    """The tensors of a source, each asked for by the name it has there."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source
        self._placed: set[str] = set()

    def has(self, name: str) -> bool:
        """Whether the file has a tensor of that name."""
        return name in self._source.tensors

    def linear(
        self,
        *names: str,
        biases: Sequence[str] = (),
        n: Sequence[int] | None = None,
        k: int | None = None,
        is_transposed: bool = False,
    ) -> PackedLinear:
        """One linear of the tensors' rows in this order, with their biases (one a name, or none).

        ``n`` (rows of each) and ``k`` are checked where they are given. Transposed, the tensors
        hold [k, n].
        """
        infos = [self._take(name) for name in names]
        wanted_k = k if k is not None else infos[0].shape[-1] if infos[0].shape else 0
        rows = n if n is not None else [info.shape[0] if info.shape else 0 for info in infos]
        for info, wanted_n in zip(infos, rows, strict=True):
            wanted = (wanted_n, wanted_k)
            self._check_shape(info, wanted[::-1] if is_transposed else wanted)
        segments = [
            self._transposed(info, size, wanted_k)
            if is_transposed
            else self._segment(info, size, wanted_k)
            for info, size in zip(infos, rows, strict=True)
        ]
        if not biases:
            return PackedLinear(segments)
        parts = [
            self.vector(name, segment.n) for name, segment in zip(biases, segments, strict=True)
        ]
        return PackedLinear(segments, np.concatenate(parts))

    def stacked(
        self, *names: str, count: int, n: Sequence[int], k: int, parts: int = 1
    ) -> tuple[PackedLinear, ...]:
        """One linear for each of ``count`` matrices that a tensor holds: [count, n, k].

        Its segments are one a name; of a single name, ``parts`` equal ones of its rows.
        """
        infos = [self._take(name) for name in names]
        for info, size in zip(infos, n, strict=True):
            self._check_shape(info, (count, size, k))
        whole = [
            (info, size, self._source.read(info.name)) for info, size in zip(infos, n, strict=True)
        ]
        times = parts if len(names) == 1 else 1
        linears = []
        for index in range(count):
            segments = []
            for info, size, data in whole:
                rows = size // times
                num_bytes = rows * info.block_type.row_bytes(k)
                for part in range(index * times, (index + 1) * times):
                    raw = data[part * num_bytes : (part + 1) * num_bytes]
                    segments.append(_as_run(info, rows, k, raw))
            linears.append(PackedLinear(segments))
        return tuple(linears)

    def row(self, name: str, k: int) -> PackedLinear:
        """A linear of one output, stored as a row or as a vector."""
        info = self._take(name)
        self._check_shape(info, (1, k) if len(info.shape) == 2 else (k,))
        return PackedLinear([self._segment(info, 1, k)])

    def vector(self, name: str, length: int) -> Float32:
        """A tensor of one dimension as float32."""
        info = self._take(name)
        self._check_shape(info, (length,))
        if info.block_type not in FLOATS:
            message = f"is {info.block_type}, and a vector must be one of {', '.join(FLOATS)}"
            raise UnsupportedModelError(self._source.path, f"tensor {name}", message)
        # A copy: it outlives the mapping.
        values = decode(info.block_type, self._source.read(name), 1, length)
        return np.array(values[0], np.float32)

    def skip(self, names: Iterable[str]) -> None:
        """Tensors that a file may have and no model needs."""
        self._placed.update(names)

    def finish(self) -> None:
        """Refuse a file with tensors that nothing asked for, naming them."""
        left = [name for name in self._source.tensors if name not in self._placed]
        if left:
            names = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if left[10:] else "")
            where = f"tensor {left[0]}" if len(left) == 1 else f"{len(left)} tensors"
            raise UnsupportedModelError(
                self._source.path, where, f"not used by this architecture: {names}"
            )

    def _transposed(self, info: TensorInfo, n: int, k: int) -> Segment:
        """Rows of a tensor that holds [k, n]."""
        if info.block_type not in FLOATS:
            message = f"is {info.block_type}, which cannot be transposed"
            raise UnsupportedModelError(self._source.path, f"tensor {info.name}", message)
        raw = self._source.read(info.name)
        elements = np.frombuffer(raw, f"V{info.block_type.block_bytes}").reshape(info.shape)
        data = np.ascontiguousarray(elements.T).tobytes()
        return Segment(info.name, info.block_type, n, k, data, is_transposed=True)

    def _segment(self, info: TensorInfo, n: int, k: int) -> Segment:
        """All rows of a tensor."""
        if info.is_made:
            make = partial(self._source.read, info.name)
            return Segment(info.name, info.block_type, n, k, make)
        return _as_run(info, n, k, self._source.read(info.name))

    def _take(self, name: str) -> TensorInfo:
        info = self._source.tensors.get(name)
        if info is None:
            raise ModelFileError(self._source.path, f"tensor {shown(name)[1:-1]}", "is missing")
        self._placed.add(name)
        return info

    def _check_shape(self, info: TensorInfo, wanted: tuple[int, ...]) -> None:
        if info.shape != wanted or 0 in info.shape:
            message = f"has shape {list(info.shape)}, not {list(wanted)}"
            raise ModelFileError(self._source.path, f"tensor {info.name}", message)


def _as_run(info: TensorInfo, n: int, k: int, data: memoryview) -> Segment:
    """Rows as they are run; where that is not as they are stored, they are made so later."""
    run = run_type(info.block_type, data)
    stored_as = None if run is info.block_type else info.block_type
    return Segment(info.name, run, n, k, data, stored_as)
