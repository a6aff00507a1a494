"""Batches and one-operator programs for tests of the interpreters.

Not here: any check. Always true: an embedding of F32 rows feeds an operator any floats at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import BlockType
from insitu.kernels.pack import PackedLinear, Segment
from insitu.kernels.program import Program, Tensor
from insitu.models.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


def ints(values: Iterable[int]) -> Int32:
    """As the kernels take them."""
    return np.array(list(values), np.int32)


def one_sequence(num_tokens: int, block_size: int, *, first_block: int = 3) -> Batch:
    """Tokens 0, 1, 2 ... of one sequence as one chunk, logits of every row."""
    tokens = ints(range(num_tokens))
    blocks = ints(reversed(range(first_block, first_block + -(-num_tokens // block_size))))
    return Batch(
        token_ids=tokens,
        positions=tokens,
        slot_mapping=blocks[tokens // block_size] * block_size + tokens % block_size,
        block_table=blocks[None],
        query_start_loc=ints([0, num_tokens]),
        seq_lens=ints([num_tokens]),
        logit_rows=tokens,
    )


def over_rows(rows: Float32, operator: Callable[[Program, Tensor], Tensor]) -> Program:
    """A program whose token t is row t of ``rows``, through one operator."""
    table = np.ascontiguousarray(rows, np.float32)
    data = table.view(np.uint8).reshape(-1)
    segment = Segment("rows", BlockType.F32, table.shape[0], table.shape[1], data)
    p = Program()
    x = p.embed(PackedLinear([segment]), p.token_ids)
    return p.output(p.take(operator(p, x), p.logit_rows))
