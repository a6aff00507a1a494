"""What a stored type runs as: itself where kernels multiply it, else what loses nothing.

Not here: layouts (``blocks``, ``assemble``). Always true: decoding what a tensor runs as gives the
bits that decoding what is stored gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.assemble import assemble
from insitu.kernels.blocks import BlockType, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.kernels.block_parts import Bytes

# Q6_K holds sub-scales of 8 bits and weights of 6 for each 16; Q8_K16 both of 8, and d in float32.
_RUN_AS: Mapping[BlockType, BlockType] = {
    BlockType.Q3_K: BlockType.Q6_K,
    BlockType.IQ3_S: BlockType.Q6_K,
    BlockType.TQ1_0: BlockType.Q6_K,
    BlockType.TQ2_0: BlockType.Q6_K,
    BlockType.IQ4_NL: BlockType.Q8_0,
    BlockType.IQ4_XS: BlockType.Q8_K16,
    BlockType.IQ3_XXS: BlockType.Q8_K16,
    BlockType.IQ2_S: BlockType.Q8_K16,
    BlockType.IQ2_XS: BlockType.Q8_K16,
    BlockType.IQ2_XXS: BlockType.Q8_K16,
    BlockType.IQ1_M: BlockType.Q8_K16,
    BlockType.IQ1_S: BlockType.Q8_K16,
}
# Powers of two that float16 holds, as MXFP4 counts them.
_LEAST_HALF, _GREATEST_HALF = 128 - 24, 128 + 15

# In the order of csrc/kernels.h.
NATIVE = tuple(t for t in BlockType if t not in _RUN_AS and t is not BlockType.MXFP4)


def run_type(stored: BlockType, data: memoryview | bytes | Bytes) -> BlockType:
    """The type that a tensor of these blocks runs as."""
    if stored is not BlockType.MXFP4:
        return _RUN_AS.get(stored, stored)
    exponents = np.frombuffer(data, np.uint8)[:: stored.block_bytes]
    fits = exponents.min() >= _LEAST_HALF and exponents.max() <= _GREATEST_HALF
    return BlockType.Q8_0 if fits else BlockType.BF16


def convert(
    stored: BlockType, run: BlockType, data: memoryview | bytes | Bytes, n: int, k: int
) -> Bytes:
    """Stored blocks of n rows as the blocks they run as: flat bytes."""
    parts = unpack(stored, data, n, k)
    if run is BlockType.BF16:  # four bits of integer and a power of two: the upper half is all
        return (parts.weights().view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
    return assemble(run, parts).reshape(-1)
