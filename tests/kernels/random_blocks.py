"""Random blocks of every type whose scales are of a size that models have.

Not here: any check. Always true: the same arguments give the same bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import BlockType

# Where a block's halves are.
_HALVES = {
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}


def random_blocks(block_type: BlockType, n: int, k: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """The raw bytes of n rows of k weights."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, n * block_type.row_bytes(k), dtype=np.uint8)
    blocks = raw.reshape(-1, block_type.block_bytes)
    scales = rng.uniform(0.001, 0.01, (len(blocks), 2))
    match block_type:
        case BlockType.F32 | BlockType.F16 | BlockType.BF16:
            kind = np.float16 if block_type is BlockType.F16 else np.float32
            values = rng.standard_normal(len(blocks)).astype(kind).view(np.uint8)
            blocks[:] = values.reshape(len(blocks), -1)[:, -block_type.block_bytes :]
        case BlockType.Q8_K16:
            blocks[:, :4] = (scales[:, :1] / 100).astype(np.float32).view(np.uint8)
        case BlockType.MXFP4:
            blocks[:, 0] = rng.integers(118, 124, len(blocks))
        case BlockType.IQ1_M:  # d is spread over four places; this is its top
            blocks[:, 55] = 0x20 | blocks[:, 55] & 15
        case _:
            for index, at in enumerate(_HALVES.get(block_type.value, (0,))):
                halves = scales[:, index : index + 1].astype(np.float16)
                blocks[:, at : at + 2] = halves.view(np.uint8)
    return raw
