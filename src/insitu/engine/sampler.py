"""Say how each logit row is to be sampled, and read what was chosen.

Sampling itself is native, in the same call as the forward pass: this file only fills and reads
arrays. Constraints are asked before a step (``token_masks``) and told of their token after it.

Always true: a row's noise is a function of (seed, choice, position), so that a token is the same
whenever and beside whomever it is made; log-probabilities become the shortest decimals that give
the same float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from insitu.engine.sequence import SampledToken
from insitu.engine.token_masks import TokenMasks, advance
from insitu.kernels.sampling import NO_PENALTY, EditArrays, RowStatus, SamplingArrays
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Prompt, Scheduled, Sequence
    from insitu.kernels.sampling import StepResult

# In the arrays (not in our own values): no log-probabilities, no limit on k.
_NO_LOGPROBS = -1
_NO_LIMIT = 0


class SamplingRows:
    """How the logit rows of a step are sampled.

    From step to step the same sequences decode: only their positions are made anew then.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sequences: list[Sequence] = []
        self._positions: list[int] = []
        self._arrays = _arrays_of([], vocab_size)
        self._masks = TokenMasks(vocab_size)
        self._failures: dict[int, RequestFailed] = {}  # by row: what its constraint gave for a mask
        self.has_constraints = False

    def begin(self, scheduled: Items[Scheduled]) -> None:
        """Take in whose rows come: one a share that has logits, in order."""
        self._positions = [item.end for item in scheduled if item.has_logits]
        sequences = [item.sequence for item in scheduled if item.has_logits]
        if sequences != self._sequences:
            self._sequences, self._arrays = sequences, _arrays_of(sequences, self._vocab_size)
            self.has_constraints = any(one.constraint is not None for one in sequences)

    def arrays(self) -> SamplingArrays:
        """One entry a row; where rows have constraints, these fill their masks."""
        arrays = replace(self._arrays, position=np.array(self._positions, np.uint32))
        if not self.has_constraints:
            return arrays
        masks, self._failures = self._masks.fill(self._sequences)
        return replace(arrays, masks=masks)

    def sampled_tokens(
        self, scheduled: Items[Scheduled], result: StepResult
    ) -> list[SampledToken | Exception | None]:
        """What each share sampled of what ``arrays`` asked for, or its own failure.

        Rows that look back are read before any others are begun.
        """
        answer: list[SampledToken | Exception | None] = []
        row = 0
        for item in scheduled:
            if not item.has_logits:
                answer.append(None)
                continue
            failure = self._failures.get(row) if self.has_constraints else None
            answer.append(failure or _chosen(item.sequence, result, row))
            row += 1
        return answer


def _arrays_of(sequences: list[Sequence], vocab_size: int) -> SamplingArrays:
    prompts = [sequence.prompt for sequence in sequences]
    top_k = [_NO_LIMIT if p.top_k is None or p.top_k >= vocab_size else p.top_k for p in prompts]
    wanted = [
        _NO_LOGPROBS if p.num_logprobs is None else min(p.num_logprobs, vocab_size) for p in prompts
    ]
    return SamplingArrays(
        temperature=np.array([abs(p.temperature) for p in prompts], np.float64),
        top_k=np.array(top_k, np.int32),
        top_p=np.array([p.top_p for p in prompts], np.float64),
        min_p=np.array([p.min_p for p in prompts], np.float64),
        seed=np.array([p.seed for p in prompts], np.uint64),
        choice=np.array([sequence.choice for sequence in sequences], np.uint32),
        position=np.array([sequence.num_tokens for sequence in sequences], np.uint32),
        num_logprobs=np.array(wanted, np.int32),
        edits=_edits_of(prompts),
    )


def _edits_of(prompts: list[Prompt]) -> EditArrays:
    starts = np.cumsum([0, *(len(p.logit_bias) for p in prompts)])
    biases = [one for p in prompts for one in p.logit_bias]
    rows = len(prompts)
    return EditArrays(
        row_start=starts.astype(np.int32),
        token_id=np.array([token_id for token_id, _ in biases], np.int32),
        count=np.full(len(biases), NO_PENALTY, np.int32),
        value=np.array([value for _, value in biases], np.float64),
        repetition=np.ones(rows),
        presence=np.zeros(rows),
        frequency=np.zeros(rows),
    )


def _chosen(sequence: Sequence, result: StepResult, row: int) -> SampledToken | RequestFailed:
    """A row's token, which its sequence's constraint has taken in."""
    status = result.status[row]
    if status != RowStatus.CHOSEN:
        return (
            _not_finite(sequence) if status == RowStatus.NOT_FINITE else _nothing_allowed(sequence)
        )
    token = _token(result, row, sequence.prompt.num_logprobs)
    return advance(sequence, token.token_id) or token


def _token(result: StepResult, row: int, num_logprobs: int | None) -> SampledToken:
    token_id = int(result.token_ids[row])
    if num_logprobs is None:
        return SampledToken(token_id)
    top = []
    columns = zip(result.top_ids[row].tolist(), result.top_logprobs[row], strict=True)
    for top_id, logprob in list(columns)[:num_logprobs]:
        # Ids past what the row asked for are negative; impossible tokens are left out.
        if top_id >= 0 and math.isfinite(logprob):
            top.append((top_id, shortest(logprob)))
    return SampledToken(token_id, shortest(result.logprobs[row]), tuple(top))


def shortest(value: np.float32) -> float:
    """The float whose shortest decimal is the float32's shortest decimal."""
    return float(str(value))


def _not_finite(sequence: Sequence) -> RequestFailed:
    return RequestFailed(
        f"The model gave a number that is not finite after token {sequence.num_tokens}."
    )


def _nothing_allowed(sequence: Sequence) -> RequestFailed:
    what = "The constraint" if sequence.constraint is not None else "logit_bias"
    return RequestFailed(
        f"{what} of this request allows no token after token {sequence.num_tokens}.",
        code="no_token_allowed",
        status=422,
    )
