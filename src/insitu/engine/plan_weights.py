"""The plan of the weights: how the file stores each type, what it runs as, and the bytes.

Not here: which type runs as which (``kernels.run_types``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.kernels.native import packed_bytes
from insitu.kernels.pack import PackedLinear

if TYPE_CHECKING:
    from insitu.models.load import LoadedModel


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Tensors stored in one type: their kinds, what they run as, bytes in the file and packed."""

    name: str
    stored: str
    runs_in: str
    size_bytes: int
    stored_bytes: int


def weight_groups(model: LoadedModel) -> tuple[WeightGroup, ...]:
    """One for each pair of types."""
    packed: dict[tuple[str, str], int] = {}
    stored: dict[tuple[str, str], int] = {}
    for segment in (segment for linear in model.linears for segment in linear.segments):
        key = str(segment.stored_type), str(segment.block_type)
        packed[key] = packed.get(key, 0) + packed_bytes(PackedLinear((segment,)))
        stored[key] = stored.get(key, 0) + segment.n * segment.stored_type.row_bytes(segment.k)
    names: dict[str, list[str]] = {}
    for group in model.storage:
        names.setdefault(str(group.block_type), []).append(group.name)
    return tuple(
        WeightGroup(", ".join(names.get(key[0], ())), *key, size_bytes, stored[key])
        for key, size_bytes in packed.items()
    )


def packed_types(model: LoadedModel) -> str:
    """What is multiplied, by name."""
    types = {str(s.block_type) for linear in model.linears for s in linear.segments}
    return ", ".join(sorted(types))
