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

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NO_PICKLE = "pickles are never opened: save the model as safetensors"

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
    if not start:
        raise ModelFileError(path, "file", "is empty")
    hint = f"; {_NO_PICKLE}" if path.suffix in _PICKLES else ""
    raise ModelFileError(path, "magic at offset 0", f"is neither GGUF nor safetensors{hint}")


def _only_gguf(folder: Path) -> Path:
    try:
        listed = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelFileError(folder, "folder", f"cannot be read: {error.strerror}") from error
    names = [name for name in listed if name.endswith(".gguf")]
    if (first := first_of_split(names)) is not None:
        return member(folder, first)
    if not names:
        pickled = next((name for name in listed if name.endswith(_PICKLES)), None)
        hint = "" if pickled is None else f", only {pickled}; {_NO_PICKLE}"
        raise ModelFileError(folder, "folder", f"holds no .gguf file and no {WEIGHTS}{hint}")
    if len(names) != 1:
        raise ModelFileError(
            folder, "folder", f"holds {len(names)} .gguf files and no {WEIGHTS}; name one file"
        )
    return member(folder, names[0])
