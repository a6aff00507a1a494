"""Which type each tensor of a file is to have, and where it will lie in the file that is written.

Not here: any weight. Always true: sizes and offsets are known before anything is computed, so that
tensors may be written in any order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from insitu.kernels.blocks import FLOATS, BlockType
from insitu.quantize.errors import QuantizeError
from insitu.quantize.grids import can_fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from insitu.weights.tensors import TensorInfo

ALIGNMENT = 32
# Of GGUF files: rows of these are looked up, or give the logits.
HEADS = ("token_embd.weight", "output.weight", "position_embd.weight")
# Where rows are no multiple of 256.
_NARROW = {
    BlockType.Q2_K: BlockType.Q4_0,
    BlockType.Q4_K: BlockType.Q4_0,
    BlockType.Q5_K: BlockType.Q5_0,
    BlockType.Q6_K: BlockType.Q8_0,
}


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor: ``is_kept`` as it is stored, or quantised; ``offset`` from the first tensor."""

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    is_kept: bool
    num_bytes: int
    offset: int

    @property
    def n(self) -> int:
        """Rows, of all matrices."""
        count = 1
        for size in self.shape[:-1]:
            count *= size
        return count

    @property
    def k(self) -> int:
        """Weights of a row."""
        return self.shape[-1]


@dataclass(frozen=True, slots=True)
class Types:
    """The type of the layers' matrices, of embedding and head, and of tensors by their names."""

    layers: BlockType
    head: BlockType | None = None
    named: tuple[tuple[str, BlockType], ...] = ()  # a pattern of names; the first that fits

    def of(self, name: str) -> BlockType:
        """What a matrix of this name is to be."""
        for pattern, kind in self.named:
            if fnmatchcase(name, pattern):
                return kind
        if name not in HEADS:
            return self.layers
        return self.head or (self.layers if self.layers in FLOATS else BlockType.Q8_0)

    def require_names(self, names: Iterable[str]) -> None:
        """Refuse a pattern that none of these names fits."""
        known = list(names)
        for pattern, _ in self.named:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise QuantizeError(f"--tensor {pattern}: no tensor has such a name.")


def lay_out(tensors: Mapping[str, TensorInfo], types: Types) -> list[Target]:
    """A target for every tensor, in the order of the file."""
    for kind in (types.layers, types.head or types.layers, *(kind for _, kind in types.named)):
        if not can_fit(kind):
            raise QuantizeError(f"--type {kind}: there is no method that makes it.")
    types.require_names(tensors)
    targets, offset = [], 0
    for info in tensors.values():
        kind, is_kept = _type_of(info, types)
        rows = info.num_bytes if is_kept else _rows(info) * kind.row_bytes(info.shape[-1])
        targets.append(Target(info.name, info.shape, kind, is_kept, rows, offset))
        offset += -(-rows // ALIGNMENT) * ALIGNMENT
    return targets


def _rows(info: TensorInfo) -> int:
    count = 1
    for size in info.shape[:-1]:
        count *= size
    return count


def _type_of(info: TensorInfo, types: Types) -> tuple[BlockType, bool]:
    """Vectors, routers and rows that no block divides stay as they are."""
    is_matrix = len(info.shape) > 1 and info.name.endswith(".weight")
    if not is_matrix or "norm" in info.name or "gate_inp" in info.name:
        return info.block_type, True
    kind = types.of(info.name)
    if info.shape[-1] % kind.block_size:
        kind = _NARROW.get(kind, kind)
    if info.shape[-1] % kind.block_size:
        return info.block_type, True
    return kind, False
