"""Open a model file or folder, whatever its format.

Not here: the formats (``gguf``, ``safetensors``) or finding a file by a name (``locate``).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from insitu.weights.errors import ModelFileError
from insitu.weights.gguf import MAGIC
from insitu.weights.gguf_split import first_of_split, open_gguf
from insitu.weights.mapped_file import open_regular
from insitu.weights.prequantized import with_plain_linears
from insitu.weights.safetensors import INDEX, WEIGHTS, SafetensorsFile, member
from insitu.weights.tensors import TensorInfo, TensorSource

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TensorInfo", "TensorSource", "open_source"]


def open_source(path: Path) -> TensorSource:
    """Open by what the file begins with: GGUF's magic, or else safetensors.

    A folder holds either model.safetensors with its config.json, or exactly one GGUF model, whose
    files may be several.
    """
    if path.is_dir():
        if os.path.lexists(path / WEIGHTS) or os.path.lexists(path / INDEX):
            return with_plain_linears(SafetensorsFile(path))
        return open_gguf(_only_gguf(path))
    descriptor = open_regular(path)
    try:
        start = os.pread(descriptor, 9, 0)
    finally:
        os.close(descriptor)
    if start[:4] == MAGIC:
        return open_gguf(path)
    if start[8:] == b"{" or path.suffix == ".safetensors":
        return with_plain_linears(SafetensorsFile(path))
    raise ModelFileError(path, "magic at offset 0", "is neither GGUF nor safetensors")


def _only_gguf(folder: Path) -> Path:
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
    except OSError as error:
        raise ModelFileError(folder, "folder", f"cannot be read: {error.strerror}") from error
    if (first := first_of_split(names)) is not None:
        return member(folder, first)
    if len(names) != 1:
        raise ModelFileError(
            folder, "folder", f"holds {len(names)} .gguf files and no {WEIGHTS}; name one file"
        )
    return member(folder, names[0])
