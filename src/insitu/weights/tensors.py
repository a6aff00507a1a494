"""What a model file offers, whatever its format: named tensors, metadata, a digest.

Not here: any format. Always true: ``shape`` is outermost first, its last dimension being the one
that is multiplied along, and ``num_bytes`` is what the shape takes in that block type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from insitu.weights.errors import ModelFileError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from insitu.kernels.blocks import BlockType
    from insitu.weights.metadata import Metadata


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file; ``offset`` counts from the start of the file.

    One that ``is_made`` lies nowhere: reading it takes time and memory.
    """

    name: str
    shape: tuple[int, ...]
    block_type: BlockType
    num_bytes: int
    offset: int
    is_made: bool = False


def read_tensor(
    path: Path, view: memoryview, tensors: Mapping[str, TensorInfo], name: str
) -> memoryview:
    """A tensor's bytes within the view of its file."""
    info = tensors.get(name)
    if info is None:
        raise ModelFileError(path, f"tensor {shown(name)[1:-1]}", "is missing")
    return view[info.offset : info.offset + info.num_bytes]


class TensorSource(Protocol):
    """An open model file or folder."""

    @property
    def path(self) -> Path:
        """What was opened."""
        ...

    @property
    def format(self) -> str:
        """ "gguf" or "safetensors"."""
        ...

    @property
    def metadata(self) -> Metadata:
        """Keys of the file's header, or of the folder's config.json."""
        ...

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name, in the file's order."""
        ...

    @property
    def size_bytes(self) -> int:
        """Size of the file that holds the weights."""
        ...

    def read(self, name: str) -> memoryview:
        """A tensor's raw bytes: a read-only view of the mapped file."""
        ...

    def file(self, name: str) -> bytes | None:
        """Another file of a model folder (tokenizer.json ...), None where there is none."""
        ...

    def digest(self) -> str:
        """SHA-256 of the file that holds the weights, in hexadecimal."""
        ...

    def close(self) -> None:
        """Let go of the file; views already handed out stay valid."""
        ...
