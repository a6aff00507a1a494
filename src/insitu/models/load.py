"""From an opened model file to a recorded Program.

Not here: opening files (``weights``), packing or running (``kernels``), or any family's name.

Always true: every tensor of the file is placed, or the load fails with its name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.models.decoder import record_decoder
from insitu.models.families import families
from insitu.models.keys import refuse
from insitu.weights.place import Placement

if TYPE_CHECKING:
    from types import ModuleType

    from insitu.kernels.blocks import BlockType
    from insitu.kernels.pack import PackedLinear
    from insitu.kernels.program import Program
    from insitu.models.spec import DecoderSpec
    from insitu.models.weights import Weights
    from insitu.weights.source import TensorSource


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """How one kind of tensor is stored, all layers together."""

    name: str
    block_type: BlockType
    num_weights: int
    size_bytes: int  # in the file


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready for an interpreter: ``program`` is the float definition, before any pass."""

    spec: DecoderSpec
    program: Program
    architecture: str
    is_tied: bool
    linears: tuple[PackedLinear, ...]
    storage: tuple[StoredGroup, ...]


def load_model(source: TensorSource, max_model_len: int | None = None) -> LoadedModel:
    """Read the spec, place the weights, record the Program.

    Kinds of rope that depend on a length are fixed to ``max_model_len``, or the model's own.
    """
    architecture, family = family_of(source)
    spec, weights = place(source, family, max_model_len)
    program = record_decoder(spec, weights)
    return LoadedModel(
        spec=spec,
        program=program,
        architecture=architecture,
        is_tied=weights.is_tied,
        linears=tuple(linear for _, linear in weights.linears()),
        storage=_storage(weights),
    )


def place(
    source: TensorSource, family: ModuleType, max_model_len: int | None = None
) -> tuple[DecoderSpec, Weights]:
    """What the model is, and every tensor in its place."""
    spec: DecoderSpec = family.spec_from(source, max_model_len)
    return spec, family.weights_from(source, Placement(source), spec)


def family_of(source: TensorSource) -> tuple[str, ModuleType]:
    """The architecture's name in the file, and the family that knows it."""
    keys = source.metadata
    if source.format == "gguf":
        where = "general.architecture"
        architecture = keys.string(where)
    else:
        where = "architectures"
        if not keys.has(where) and source.file("config.json") is None:
            message = "is not beside the weights: a safetensors model is its whole folder"
            raise refuse(source, "config.json", message)
        names = keys.strings(where)
        if len(names) != 1:
            raise refuse(source, where, f"names {len(names)} architectures, not one")
        architecture = names[0]
    for family in families():
        if architecture in family.ARCHITECTURES:
            return architecture, family
    known = ", ".join(name for family in families() for name in family.ARCHITECTURES)
    raise refuse(source, where, f"{architecture!r} is not supported (supported: {known})")


def _storage(weights: Weights) -> tuple[StoredGroup, ...]:
    num_weights: Counter[tuple[str, BlockType]] = Counter()
    size_bytes: Counter[tuple[str, BlockType]] = Counter()
    for name, linear in weights.linears():
        for segment in linear.segments:
            key = name, segment.stored_type
            num_weights[key] += segment.n * segment.k
            size_bytes[key] += segment.n * segment.stored_type.row_bytes(segment.k)
    return tuple(StoredGroup(*key, num_weights[key], size_bytes[key]) for key in num_weights)
