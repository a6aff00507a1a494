"""The masks of a step's constrained rows, filled by their constraints.

Not here: what a constraint allows, or how a mask is applied (``kernels``).

Always true: a constraint that fails ends its own sequence; an unconstrained row costs nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from insitu.kernels.sampling import NO_MASK, MaskArrays, num_mask_words
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Sequence
    from insitu.kernels.sampling import Int32, UInt32
    from insitu.types import TokenConstraint

logger = logging.getLogger("insitu.engine")


class TokenMasks:
    """Room for masks, kept from step to step; grows to the most rows that had one at once."""

    def __init__(self, vocab_size: int) -> None:
        self._bits: UInt32 = np.zeros((0, num_mask_words(vocab_size)), np.uint32)

    def fill(
        self, constraints: Items[TokenConstraint | None]
    ) -> tuple[MaskArrays, dict[int, RequestFailed]]:
        """One entry a row, and by row the failures of their constraints."""
        of_row: Int32 = np.full(len(constraints), NO_MASK, np.int32)
        failures = {}
        rows = [row for row, one in enumerate(constraints) if one is not None]
        if len(rows) > len(self._bits):
            self._bits = np.zeros((len(rows), self._bits.shape[1]), np.uint32)
        for mask, row in enumerate(rows):
            constraint = constraints[row]
            assert constraint is not None
            self._bits[mask] = 0
            try:
                if constraint.fill_mask(memoryview(self._bits[mask]).cast("B")):
                    of_row[row] = mask
            except Exception as error:  # whatever it was, the other rows have no part in it
                failures[row] = constraint_failed(error)
        return MaskArrays(of_row, self._bits), failures


def advance(sequence: Sequence, token_id: int) -> tuple[int, ...] | RequestFailed:
    """Let a sequence's constraint take in a token, and what it then forces; its failure, if any.

    What is forced is what would be chosen step by step: where its log-probabilities are wanted, or
    something else might ban it, nothing is.
    """
    constraint, prompt = sequence.constraint, sequence.prompt
    assert constraint is not None
    try:
        constraint.advance(token_id)
        is_last = token_id in prompt.stop_ids
        if is_last or prompt.num_logprobs is not None or prompt.shaping.bans:
            return ()
        forced = tuple(constraint.forced())
        for one in forced:
            constraint.advance(one)
    except Exception as error:
        return constraint_failed(error)
    return forced


def constraint_failed(error: Exception) -> RequestFailed:
    """To be called where an exception is handled; a failure that is the request's own stays."""
    if isinstance(error, RequestFailed):
        return error
    logger.exception("a constraint failed; its sequence ends")
    return RequestFailed("The constraint on this request's tokens failed.")
