"""The codebooks of vectors that GGUF's IQ types index: facts of the format, kept in codebooks.bin.

Not here: how an index is stored. The file holds every weight as the number of its value, lowest
bits first: 2 bits where there are three values, 4 where there are eight.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

_TWOS, _ONES = (8, 25, 43), (-1, 0, 1)
_THREES, _ODDS = (4, 12, 20, 28, 36, 44, 52, 62), (1, 3, 5, 7, 9, 11, 13, 15)
# In the file's order: vectors, weights of each, values.
_BOOKS = {
    "IQ2_XXS": (256, 8, _TWOS),
    "IQ2_XS": (512, 8, _TWOS),
    "IQ2_S": (1024, 8, _TWOS),
    "IQ3_XXS": (256, 4, _THREES),
    "IQ3_S": (512, 4, _ODDS),
    "IQ1": (2048, 8, _ONES),
}


@cache
def codebook(name: str) -> npt.NDArray[np.int8]:
    """The vectors of a type: [vectors, weights of each]."""
    raw, at = np.frombuffer((Path(__file__).parent / "codebooks.bin").read_bytes(), np.uint8), 0
    for book, (num_vectors, size, values) in _BOOKS.items():
        width = 2 if len(values) == 3 else 4
        num_bytes = num_vectors * size * width // 8
        if book == name:
            shifts = np.arange(0, 8, width, dtype=np.uint8)
            numbers = raw[at : at + num_bytes, None] >> shifts & np.uint8((1 << width) - 1)
            vectors: npt.NDArray[np.int8] = np.array(values, np.int8)[numbers]
            return vectors.reshape(num_vectors, size)
        at += num_bytes
    raise KeyError(name)
