"""Who runs in the next step, and how many of its tokens.

There are no phases. Every sequence has tokens and computed tokens, and a step lets it catch up:
prefill, chunked prefill, decode and recompute are the same thing. First come, first served; when
blocks run out the sequence that came last gives its blocks back and catches up again later.

Not here: arrays, sampling, threads.

Always true: everything running came before everything waiting; every running sequence moves in
every step (short of its last token while logit rows are short); a sequence that was let in fits
into the whole pool alone, so the first one always ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.engine.sequence import Output, SampledToken, Scheduled, Sequence
from insitu.types import FinishReason, Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.block_pool import BlockPool
    from insitu.engine.stats import Stats


# One part in so many of a step is shared evenly; the rest goes to whoever came first.
SHARED_PART = 4


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What one step may hold.

    While a sequence is past its prompt, ``max_num_batched_tokens`` bounds a step and so the gap
    between its tokens; with none, ``max_num_batched_tokens_alone`` does.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_batched_tokens_alone: int
    max_num_logit_rows: int

    def __post_init__(self) -> None:
        """Every running sequence must be able to move in every step."""
        least = min(self.max_num_batched_tokens, self.max_num_batched_tokens_alone)
        assert 1 <= self.max_num_seqs <= least
        assert self.max_num_logit_rows >= 1


class Scheduler:
    """Keeps the waiting and the running sequences, oldest first."""

    def __init__(self, pool: BlockPool, budget: StepBudget, stats: Stats) -> None:
        self.pool = pool
        self.budget = budget
        self.stats = stats
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that ``require_fit`` let through."""
        self.waiting.append(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._free(sequence)

    def schedule(self) -> list[Scheduled]:
        """Let in whom there is room for, then share the next step out in order of arrival."""
        while self._can_admit():
            self.running.append(self.waiting.popleft())
        scheduled: list[Scheduled] = []
        num_left = self._num_step_tokens()
        rows_left = self.budget.max_num_logit_rows
        # So much is kept for each sequence behind: one token that lets it go on decoding, or a
        # part of its prompt, lest a short prompt wait for all of a long one.
        least = max(1, num_left // (SHARED_PART * max(1, len(self.running))))
        kept = sum(min(sequence.num_missing_tokens, least) for sequence in self.running)
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            index += 1
            kept -= min(sequence.num_missing_tokens, least)
            item = self._share(sequence, num_left - kept, rows_left)
            if item is None:
                continue
            if not self._hold_blocks(sequence, item.num_tokens):
                break
            scheduled.append(item)
            num_left -= item.num_tokens
            rows_left -= item.has_logits
        return scheduled

    def update(
        self, scheduled: Items[Scheduled], sampled: Items[SampledToken | Exception | None]
    ) -> list[Output]:
        """Take in what a step did; ``sampled`` holds one entry a scheduled share."""
        outputs = []
        for item, token in zip(scheduled, sampled, strict=True):
            sequence = item.sequence
            if isinstance(token, Exception):
                outputs.append(self.fail(sequence, token))
                continue
            sequence.num_computed_tokens += item.num_tokens
            if token is not None:
                outputs.append(self._append(sequence, token))
        return outputs

    def fail(self, sequence: Sequence, error: Exception) -> Output:
        """End one sequence with an error."""
        self.abort(sequence)
        return Output(sequence.prompt.request_id, error=error)

    def _append(self, sequence: Sequence, token: SampledToken) -> Output:
        sequence.token_ids.append(token.token_id)
        finish = None
        if token.token_id in sequence.prompt.stop_ids:
            finish = FinishReason.STOP
        elif sequence.num_output_tokens >= sequence.prompt.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None:
            self.abort(sequence)
        return Output(sequence.prompt.request_id, token, finish)

    def _num_step_tokens(self) -> int:
        if any(sequence.num_output_tokens for sequence in self.running):
            return self.budget.max_num_batched_tokens
        return self.budget.max_num_batched_tokens_alone

    def _share(self, sequence: Sequence, num_left: int, rows_left: int) -> Scheduled | None:
        """The next tokens of a sequence; without a logit row left, all but its last one."""
        num_missing = sequence.num_missing_tokens
        num_tokens = min(num_missing, num_left)
        if num_tokens == num_missing and not rows_left:
            num_tokens -= 1
        if num_tokens <= 0:
            return None
        return Scheduled(sequence, num_tokens, num_tokens == num_missing)

    def _hold_blocks(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a sequence the blocks of its next tokens, preempting whoever came last.

        False: that was the sequence itself, and it waits again.
        """
        wanted = self.pool.blocks_for(sequence.num_computed_tokens + num_tokens)
        while True:
            blocks = self.pool.allocate(wanted - len(sequence.block_ids))
            if blocks is not None:
                sequence.block_ids.extend(blocks)
                return True
            last = self.running.pop()
            self._free(last)
            last.num_preemptions += 1
            self.stats.count("preemptions")
            self.waiting.appendleft(last)
            if last is sequence:
                return False

    def _can_admit(self) -> bool:
        """Whether the first that waits may run.

        It and all that run must be able to catch up and then grow by a block, so that nobody is let
        in only to be preempted at once.
        """
        if not self.waiting or len(self.running) >= self.budget.max_num_seqs:
            return False
        promised = sum(map(self._num_wanted_blocks, self.running))
        return promised + self._num_wanted_blocks(self.waiting[0]) <= self.pool.num_free

    def _num_wanted_blocks(self, sequence: Sequence) -> int:
        num_tokens = min(sequence.num_tokens + self.pool.block_size, sequence.max_num_tokens)
        return self.pool.blocks_for(num_tokens) - len(sequence.block_ids)

    def _free(self, sequence: Sequence) -> None:
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed_tokens = 0


def require_fit(pool: BlockPool, prompt_tokens: int, max_tokens: int) -> None:
    """Refuse a prompt that the whole pool could never hold to its end, with the numbers."""
    num_blocks = pool.blocks_for(prompt_tokens + max_tokens - 1)
    if num_blocks > pool.num_blocks:
        size = pool.num_blocks * pool.block_size
        raise Refusal(
            f"The prompt has {prompt_tokens} tokens and max_tokens is {max_tokens}, but the KV "
            f"cache holds {size} tokens; start with a larger --kv-cache-bytes or ask for less.",
            param="max_tokens" if pool.blocks_for(prompt_tokens) <= pool.num_blocks else "prompt",
            code="context_length_exceeded",
        )
