"""Hand a file's tensors to a model, and hold that every one of them found its place.

Not here: names (families give them) or packing (``kernels``).

Always true: a shape that is handed out was checked; ``finish`` passes only if no tensor is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import FLOATS, decode
from insitu.kernels.pack import PackedLinear, Segment
from insitu.weights.errors import ModelFileError, UnsupportedModelError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    ) -> PackedLinear:
        """One linear of the tensors' rows in this order, with their biases (one a name, or none).

        ``n`` (rows of each) and ``k`` are checked where they are given.
        """
        infos = [self._take(name) for name in names]
        wanted_k = k if k is not None else infos[0].shape[-1] if infos[0].shape else 0
        rows = n if n is not None else [info.shape[0] if info.shape else 0 for info in infos]
        for info, wanted_n in zip(infos, rows, strict=True):
            self._check_shape(info, (wanted_n, wanted_k))
        segments = [
            Segment(info.name, info.block_type, size, wanted_k, self._source.read(info.name))
            for info, size in zip(infos, rows, strict=True)
        ]
        if not biases:
            return PackedLinear(segments)
        parts = [
            self.vector(name, segment.n) for name, segment in zip(biases, segments, strict=True)
        ]
        return PackedLinear(segments, np.concatenate(parts))

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

    def finish(self) -> None:
        """Refuse a file with tensors that nothing asked for, naming them."""
        left = [name for name in self._source.tensors if name not in self._placed]
        if left:
            names = ", ".join(left[:10]) + (f" and {len(left) - 10} more" if left[10:] else "")
            where = f"tensor {left[0]}" if len(left) == 1 else f"{len(left)} tensors"
            raise UnsupportedModelError(
                self._source.path, where, f"not used by this architecture: {names}"
            )

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
