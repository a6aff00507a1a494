"""One step's work as plain arrays, handed to a Program's interpreter as an argument.

Not here: which sequences run (the engine decides) or any text.

Always true: tokens of a sequence are consecutive rows, in the order of their positions; every array
is C-contiguous int32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences, R of whose rows are wanted as logits, P as pooled rows."""

    token_ids: Int32  # [T]
    positions: Int32  # [T]
    slot_mapping: Int32  # [T] block_id * block_size + offset
    block_table: Int32  # [S, max_blocks_of_batch]
    query_start_loc: Int32  # [S + 1]
    seq_lens: Int32  # [S] including this step's tokens
    logit_rows: Int32  # [R] indices into T
    pooled_rows: Int32 = field(default_factory=lambda: _NONE)  # [P] indices into T

    def __post_init__(self) -> None:
        """Make every array what the kernels read."""
        for name in self.__slots__:
            array = getattr(self, name)
            if type(array) is not np.ndarray or array.dtype != np.int32:
                object.__setattr__(self, name, np.ascontiguousarray(array, np.int32))

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_seqs(self) -> int:
        """S."""
        return len(self.seq_lens)

    @property
    def num_logit_rows(self) -> int:
        """R."""
        return len(self.logit_rows)
