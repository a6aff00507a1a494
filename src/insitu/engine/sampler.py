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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from insitu.engine.sequence import SampledToken
from insitu.engine.shaper import Shaper
from insitu.engine.shaping import NO_SHAPING, Shapes
from insitu.engine.token_masks import TokenMasks, advance
from insitu.kernels.sampling import (
    NO_LOGPROBS,
    NO_MASK,
    NONE_GIVEN,
    EditArrays,
    RowStatus,
    SamplingArrays,
)
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.sequence import Made, Scheduled, Sequence
    from insitu.engine.shaper import Edits
    from insitu.kernels.sampling import MaskArrays, StepResult
    from insitu.types import TokenConstraint

# In the arrays (not in our own values): no limit on k.
_NO_LIMIT = 0


class Row(NamedTuple):
    """A row of logits: a sequence's own, or one that tells of a given token of its prompt."""

    sequence: Sequence
    position: int
    given_id: int

    @property
    def is_chosen(self) -> bool:
        """Whether a token is chosen from it."""
        return self.given_id == NONE_GIVEN

    @property
    def constraint(self) -> TokenConstraint | None:
        """What narrows the choice."""
        return self.sequence.constraint if self.is_chosen else None

    @property
    def shaper(self) -> Shapes | None:
        """What changes the logits, made when it is first asked for."""
        sequence = self.sequence
        if not self.is_chosen or sequence.prompt.shaping == NO_SHAPING:
            return None
        if sequence.shaper is None:
            prompt = sequence.prompt
            sequence.shaper = Shaper(prompt.shaping, len(prompt.token_ids), prompt.stop_ids)
        return sequence.shaper

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told of beside the token; None: not even that one."""
        prompt = self.sequence.prompt
        return prompt.num_logprobs if self.is_chosen else prompt.num_prompt_logprobs


def _rows_of(item: Scheduled) -> list[Row]:
    """Those of the share's prompt, then its own."""
    sequence = item.sequence
    rows = [Row(sequence, at + 1, sequence.prompt.token_ids[at + 1]) for at in item.told]
    return [*rows, Row(sequence, item.end, NONE_GIVEN)] if item.has_logits else rows


class SamplingRows:
    """How the logit rows of a step are sampled.

    From step to step the same sequences decode: only their positions are made anew then, and what
    follows from their ids.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: list[Row] = []
        self._arrays = _arrays_of([], vocab_size)
        self._masks = TokenMasks(vocab_size)
        self._failures: dict[int, RequestFailed] = {}  # by row: what its constraint gave for a mask
        self.has_constraints = False
        self._has_shapers = False

    def begin(self, scheduled: Items[Scheduled]) -> None:
        """Take in whose rows come, in order."""
        before = [(row.sequence, row.given_id) for row in self._rows]
        self._rows = [row for item in scheduled for row in _rows_of(item)]
        if before == [(row.sequence, row.given_id) for row in self._rows]:
            return
        self._arrays = _arrays_of(self._rows, self._vocab_size)
        self.has_constraints = any(row.constraint is not None for row in self._rows)
        self._has_shapers = any(row.shaper is not None for row in self._rows)

    def arrays(self) -> SamplingArrays:
        """One entry a row; where rows have constraints, these fill their masks."""
        rows = self._rows
        positions = np.array([row.position for row in rows], np.uint32)
        arrays = replace(self._arrays, position=positions)
        may_end: set[int] = set()
        if self.has_constraints:
            masks, self._failures = self._masks.fill([row.constraint for row in rows])
            arrays = replace(arrays, masks=masks)
            may_end = _rows_that_can_only_end(rows, masks)
        if self._has_shapers:
            arrays = replace(arrays, edits=_edits_of(rows, may_end))
        return arrays

    def sampled_tokens(
        self, scheduled: Items[Scheduled], result: StepResult
    ) -> list[Made | Exception | None]:
        """What each share sampled of what ``arrays`` asked for, or its own failure.

        Rows that look back are read before any others are begun.
        """
        answer: list[Made | Exception | None] = []
        row = 0
        for item in scheduled:
            failure = _tell(item, result, row)
            row += len(item.told)
            if item.has_logits:
                if self.has_constraints:
                    failure = failure or self._failures.get(row)
                answer.append(failure or _chosen(item.sequence, result, row))
                row += 1
            else:
                answer.append(failure)
        return answer


def _arrays_of(rows: list[Row], vocab_size: int) -> SamplingArrays:
    prompts = [row.sequence.prompt for row in rows]
    wanted = [row.num_logprobs for row in rows]
    return SamplingArrays.of(
        len(rows),
        temperature=[abs(p.temperature) for p in prompts],
        top_k=[_NO_LIMIT if p.top_k is None else min(p.top_k, vocab_size) for p in prompts],
        top_p=[p.top_p for p in prompts],
        min_p=[p.min_p for p in prompts],
        typical_p=[p.typical_p for p in prompts],
        top_n_sigma=[p.top_n_sigma for p in prompts],
        xtc_probability=[p.xtc_probability for p in prompts],
        xtc_threshold=[p.xtc_threshold for p in prompts],
        order=[p.order for p in prompts],
        seed=np.array([p.seed for p in prompts], np.uint64),
        choice=[row.sequence.choice for row in rows],
        given_id=[row.given_id for row in rows],
        num_logprobs=[NO_LOGPROBS if one is None else min(one, vocab_size) for one in wanted],
        is_processed=[p.has_processed_logprobs for p in prompts],
    )


def _edits_of(rows: list[Row], may_end: set[int]) -> EditArrays:
    """Of every row that has a shaper, after its sequence's tokens."""
    edits: list[list[Edits]] = []
    for index, row in enumerate(rows):
        shaper = row.shaper
        ids, is_free = row.sequence.token_ids, index in may_end
        edits.append([] if shaper is None else shaper.edits(ids, may_end=is_free))
    parts = [part for of_row in edits for part in of_row]
    sizes = [sum(len(ids) for ids, _, _ in of_row) for of_row in edits]
    shapings = [row.sequence.prompt.shaping for row in rows]
    return EditArrays(
        row_start=np.cumsum([0, *sizes], dtype=np.int32),
        token_id=np.concatenate([ids for ids, _, _ in parts]),
        count=np.concatenate([counts for _, counts, _ in parts]),
        value=np.concatenate([values for _, _, values in parts]),
        repetition=np.array([one.repetition for one in shapings]),
        presence=np.array([one.presence for one in shapings]),
        frequency=np.array([one.frequency for one in shapings]),
    )


def _rows_that_can_only_end(rows: list[Row], masks: MaskArrays) -> set[int]:
    """Those whose constraint leaves nothing but their stop ids, though ``min_tokens`` holds."""
    found = set()
    for index, (row, mask) in enumerate(zip(rows, masks.of_row.tolist(), strict=True)):
        sequence = row.sequence
        if mask != NO_MASK and sequence.num_output_tokens < sequence.prompt.shaping.min_tokens:
            others = masks.bits[mask].copy()
            for token_id in sequence.prompt.stop_ids:
                others[token_id // 32] &= ~np.uint32(1 << token_id % 32)
            if not others.any():
                found.add(index)
    return found


def _tell(item: Scheduled, result: StepResult, row: int) -> RequestFailed | None:
    """Note what a share's rows tell of its prompt; what is known already, is the same again."""
    sequence = item.sequence
    known = sequence.prompt_tokens
    for index, position in enumerate(item.told, row):
        if result.status[index] != RowStatus.CHOSEN:
            return _not_finite(sequence)
        if position == len(known):
            known.append(_token(result, index, sequence.prompt.num_prompt_logprobs))
    return None


def _chosen(sequence: Sequence, result: StepResult, row: int) -> SampledToken | RequestFailed:
    """A row's token, which its sequence's constraint has taken in."""
    status = result.status[row]
    if status != RowStatus.CHOSEN:
        return (
            _not_finite(sequence) if status == RowStatus.NOT_FINITE else _nothing_allowed(sequence)
        )
    token = _token(result, row, sequence.prompt.num_logprobs)
    if sequence.constraint is None:
        return token
    forced = advance(sequence, token.token_id)
    if isinstance(forced, RequestFailed):
        return forced
    return replace(token, forced=forced) if forced else token


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
    what = "The constraint" if sequence.constraint is not None else "What was banned by values"
    return RequestFailed(
        f"{what} of this request allows no token after token {sequence.num_tokens}.",
        code="no_token_allowed",
        status=422,
    )
