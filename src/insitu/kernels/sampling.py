"""What a step is to choose by and what it chose, as arrays: one entry a row of logits.

Not here: what they mean (``reference_sampling``, ``reference_processors``), or who fills them.

Always true: every array has its dtype and is C-contiguous when it reaches the extension.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu.sampling_params import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

Int32 = npt.NDArray[np.int32]
UInt32 = npt.NDArray[np.uint32]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
UInt8 = npt.NDArray[np.uint8]
# With room for the logits before the edits, which the extension writes.
EditTuple = tuple[Int32, Int32, Int32, Float64, Float32, Float64, Float64, Float64]
WantedTuple = tuple[tuple[npt.NDArray[Any], ...], EditTuple, tuple[Int32, UInt32]]

# Of EditArrays.count: the token's own value is added, and no penalty.
NO_PENALTY = -1
# Of MaskArrays.of_row: every token is allowed.
NO_MASK = -1
# Of SamplingArrays.
NONE_GIVEN = -1
NO_LOGPROBS = -1


def num_mask_words(vocab_size: int) -> int:
    """Words of 32 bits that hold one bit a token."""
    return -(-vocab_size // 32)


@dataclass(frozen=True, slots=True)
class EditArrays:
    """Changes of single logits; row r has those from ``row_start[r]`` to ``row_start[r + 1]``.

    A row's own penalties apply where ``count`` is 0 or more; ``value`` is added after them, and
    minus infinity bans.
    """

    row_start: Int32  # [R + 1]
    token_id: Int32  # [E]
    count: Int32  # [E] occurrences to be penalised for, or NO_PENALTY
    value: Float64  # [E]
    repetition: Float64  # [R] 1: off
    presence: Float64  # [R] 0: off
    frequency: Float64  # [R] 0: off


@dataclass(frozen=True, slots=True)
class MaskArrays:
    """Which tokens are allowed: bit i % 32 of word i / 32 is token i's."""

    of_row: Int32  # [R] index of a mask, or NO_MASK
    bits: UInt32  # [num, num_mask_words(vocab_size)]


@dataclass(frozen=True, slots=True)
class SamplingArrays:
    """How to choose, one entry a logit row."""

    temperature: Float64  # 0: the most likely token
    top_k: Int32  # 0: off
    top_p: Float64  # 1: off
    min_p: Float64  # 0: off
    typical_p: Float64  # 1: off
    top_n_sigma: Float64  # 0: off
    xtc_probability: Float64  # 0: off
    xtc_threshold: Float64
    order: Int32  # of truncation: Order
    seed: npt.NDArray[np.uint64]
    choice: UInt32
    position: UInt32  # that the new token will take
    given_id: Int32  # a token that is not chosen, only its log-probability told; NONE_GIVEN: choose
    num_logprobs: Int32  # NO_LOGPROBS: none, not even the chosen token's
    is_processed: (
        Int32  # 1: log-probabilities of what was chosen among; 0: of the model's own logits
    )
    edits: EditArrays | None = None
    masks: MaskArrays | None = None

    @classmethod
    def of(cls, rows: int, **columns: npt.ArrayLike) -> SamplingArrays:
        """Greedy, without log-probabilities, but for the columns given: a number or one a row."""
        arrays: dict[str, Any] = {}
        for name, dtype, off in SAMPLING_DTYPES:
            value = columns.pop(name, off)
            is_one = isinstance(value, int | float)
            arrays[name] = np.full(rows, value, dtype) if is_one else np.asarray(value, dtype)
        assert not columns, f"no such column: {', '.join(columns)}"
        return cls(**arrays)


class RowStatus(IntEnum):
    """What became of a row."""

    CHOSEN = 0
    NOT_FINITE = 1  # NaN or +Inf among the logits, or nothing possible
    NOTHING_ALLOWED = 2  # edits and mask left nothing that is possible


@dataclass(frozen=True, slots=True)
class StepResult:
    """What was chosen, one entry a logit row."""

    token_ids: Int32
    logprobs: Float32  # NaN where none was asked for
    top_ids: Int32  # [R, most asked for]; -1 past what a row asked for
    top_logprobs: Float32
    status: UInt8  # of RowStatus

    @classmethod
    def empty(cls, rows: int, sampling: SamplingArrays) -> StepResult:
        """Room for what a step chooses."""
        columns = max(0, int(sampling.num_logprobs.max(initial=0)))
        return cls(
            np.empty(rows, np.int32),
            np.empty(rows, np.float32),
            np.empty((rows, columns), np.int32),
            np.empty((rows, columns), np.float32),
            np.empty(rows, np.uint8),
        )

    def as_tuple(self) -> tuple[Int32, Float32, Int32, Float32, UInt8]:
        """In the order the extension takes them."""
        return self.token_ids, self.logprobs, self.top_ids, self.top_logprobs, self.status


def checked_array(name: str, array: Any, dtype: type[np.generic], num_dims: int) -> Any:
    """The array, or ``ValueError`` naming it where its form is wrong."""
    good = (
        isinstance(array, np.ndarray)
        and array.dtype == dtype
        and array.ndim == num_dims
        and array.flags.c_contiguous
    )
    if not good:
        wanted = f"a C-contiguous {num_dims}-d array of {np.dtype(dtype)}"
        raise ValueError(f"{name}: needs {wanted}")
    return array


# In the order the extension takes them, with what is off.
SAMPLING_DTYPES: Sequence[tuple[str, type[np.generic], float]] = (
    ("temperature", np.float64, 0.0),
    ("top_k", np.int32, 0),
    ("top_p", np.float64, 1.0),
    ("min_p", np.float64, 0.0),
    ("typical_p", np.float64, 1.0),
    ("top_n_sigma", np.float64, 0.0),
    ("xtc_probability", np.float64, 0.0),
    ("xtc_threshold", np.float64, 0.1),
    ("order", np.int32, Order.OWN),
    ("seed", np.uint64, 0),
    ("choice", np.uint32, 0),
    ("position", np.uint32, 0),
    ("given_id", np.int32, NONE_GIVEN),
    ("num_logprobs", np.int32, NO_LOGPROBS),
    ("is_processed", np.int32, 0),
)
_EDIT_DTYPES: Sequence[tuple[str, type[np.generic]]] = (
    ("row_start", np.int32),
    ("token_id", np.int32),
    ("count", np.int32),
    ("value", np.float64),
    ("repetition", np.float64),
    ("presence", np.float64),
    ("frequency", np.float64),
)


def wanted_tuple(
    sampling: SamplingArrays, vocab_size: int
) -> tuple[tuple[Any, ...], EditTuple, tuple[Int32, UInt32]]:
    """In the order the extension takes them; what is absent is made of nothing."""
    rows = len(sampling.num_logprobs)
    edits = sampling.edits or _no_edits(rows)
    masks = sampling.masks or _no_masks(rows, vocab_size)
    columns: list[Any] = [
        checked_array(name, getattr(sampling, name), dtype, 1) for name, dtype, _ in SAMPLING_DTYPES
    ]
    for (name, _, _), column in zip(SAMPLING_DTYPES, columns, strict=True):
        if len(column) != rows:
            raise ValueError(f"{name} has {len(column)} entries, not {rows}")
    a, b, c, d, *rest = (
        checked_array(f"edits.{name}", getattr(edits, name), dtype, 1)
        for name, dtype in _EDIT_DTYPES
    )
    before = np.empty(len(edits.token_id), np.float32)
    of_row = checked_array("masks.of_row", masks.of_row, np.int32, 1)
    bits = checked_array("masks.bits", masks.bits, np.uint32, 2)
    return tuple(columns), (a, b, c, d, before, *rest), (of_row, bits)


def _no_edits(rows: int) -> EditArrays:
    none, ones, zeros = np.empty(0, np.int32), np.ones(rows), np.zeros(rows)
    return EditArrays(np.zeros(rows + 1, np.int32), none, none, np.empty(0), ones, zeros, zeros)


def _no_masks(rows: int, vocab_size: int) -> MaskArrays:
    bits = np.empty((0, num_mask_words(vocab_size)), np.uint32)
    return MaskArrays(np.full(rows, NO_MASK, np.int32), bits)
