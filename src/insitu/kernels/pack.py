"""A linear's weight as segments of quantised rows, and the layout kernels multiply from.

Not here: reading files (``weights`` fills segments) or the native packing itself. ``pack_segment``
is that layout's definition in NumPy, and native packing must give the same bytes.

Always true: all segments of a PackedLinear have the same k; their rows follow each other in n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.kernels.blocks import BlockType, Bytes

Float32 = npt.NDArray[np.float32]


@dataclass(slots=True)
class Segment:
    """Rows of one tensor in one block type: ``data`` is raw blocks row by row, or None (released)."""

    name: str
    block_type: BlockType
    n: int
    k: int
    data: memoryview | Bytes | bytes | None

    def __post_init__(self) -> None:
        """Hold the promise that data is whole rows."""
        expected = self.n * self.block_type.row_bytes(self.k)
        num_bytes = memoryview(self.data).nbytes if self.data is not None else expected
        if self.n < 1 or self.k < 1 or num_bytes != expected:
            shape = f"{self.block_type} [{self.n}, {self.k}]"
            raise ValueError(f"{self.name}: {shape} takes {expected} bytes, not {num_bytes}")

    def raw(self) -> memoryview | Bytes | bytes:
        """The raw blocks; an error once they were released."""
        if self.data is None:
            raise ValueError(f"{self.name}: its blocks were released after packing")
        return self.data


class PackedLinear:
    """Segments multiplied in one call, with an optional bias over all their outputs."""

    def __init__(self, segments: Sequence[Segment], bias: Float32 | None = None) -> None:
        self.segments = tuple(segments)
        if not self.segments or len({segment.k for segment in self.segments}) != 1:
            shapes = ", ".join(f"{s.name} [{s.n}, {s.k}]" for s in self.segments)
            raise ValueError(f"segments of one linear need one k: {shapes or 'none given'}")
        self.bias = None if bias is None else np.ascontiguousarray(bias, np.float32)
        if self.bias is not None and self.bias.shape != (self.n,):
            raise ValueError(f"{self.name}: bias {self.bias.shape} for {self.n} outputs")

    @property
    def name(self) -> str:
        """Names of the segments' tensors, joined."""
        return "+".join(segment.name for segment in self.segments)

    @property
    def n(self) -> int:
        """Outputs of all segments."""
        return sum(segment.n for segment in self.segments)

    @property
    def k(self) -> int:
        """Inputs."""
        return self.segments[0].k

    @property
    def groups(self) -> tuple[int, ...]:
        """Distinct activation groups, in the order segments first need them; 0 is float rows."""
        return tuple(dict.fromkeys(s.block_type.activation_group for s in self.segments))

    def release(self) -> None:
        """Let go of the raw blocks: the packed form is all that is needed from here on."""
        for segment in self.segments:
            segment.data = None
