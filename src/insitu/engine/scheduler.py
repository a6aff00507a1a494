"""Who runs in the next step, and how many of its tokens.

There are no phases. Every sequence has tokens and computed tokens, and a step lets it catch up:
prefill, chunked prefill, decode and recompute are the same thing, and what others computed already
counts as computed. By priority, then first come, first served; when blocks run out the last in
that order gives its blocks back and catches up again later.

A step may be scheduled while the one before it runs: what that one computes and samples counts as
there, whatever its id. What only its end can tell (an end id, a failure) is found then, and the
share that such a sequence has in the next step is passed over.

Not here: arrays, sampling, threads.

Always true: every running sequence moves in every step (short of its last token while logit rows
are short), unless its last token is under way; what was not computed and taken in is not published;
a sequence that was let in fits into the whole pool alone, so the first in order always ends;
nothing that waits is overtaken by more than ``MAX_OVERTAKEN`` that came later.
"""

from __future__ import annotations

import time
from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.engine.prefix import HashChain
from insitu.engine.sequence import Embedded, Output, SampledToken, Scheduled, Sequence
from insitu.refusal import Refusal
from insitu.types import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.block_pool import BlockPool
    from insitu.engine.sequence import Made
    from insitu.engine.stats import Stats


# One part in so many of a step is shared evenly; the rest goes to whoever came first.
SHARED_PART = 4

# So many later arrivals of a more urgent priority may be let in before one that waits; then none.
MAX_OVERTAKEN = 64


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
    """Keeps the waiting and the running sequences, the first in order first."""

    def __init__(self, pool: BlockPool, budget: StepBudget, stats: Stats) -> None:
        self.pool = pool
        self.budget = budget
        self.stats = stats
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._num_arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.running) or not all(one.is_paused for one in self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that ``require_fit`` let through."""
        sequence.arrival = self._num_arrivals
        self._num_arrivals += 1
        salt = sequence.prompt.cache_salt
        if salt is not None:
            sequence.hashes = HashChain(salt, self.pool.block_size)
        insort(self.waiting, sequence, key=_order)

    def abort(self, sequence: Sequence) -> None:
        """Forget a sequence and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.has_ended = True
        self._free(sequence)

    def forget(self, salt: bytes) -> None:
        """Keep nothing for prompts whose salt begins so: what is free, and what they still hold."""
        self.pool.forget(salt)
        for sequence in (*self.running, *self.waiting):
            owner = sequence.prompt.cache_salt
            if owner is not None and owner.startswith(salt):
                sequence.hashes = None
                sequence.is_forgotten = True

    def pause(self, sequence: Sequence) -> None:
        """Let a sequence wait until it is resumed, its blocks given back."""
        sequence.is_paused = True
        if sequence in self.running:
            self.preempt(sequence)

    def schedule(self) -> list[Scheduled]:
        """Let in whom there is room for, then share the next step out in order."""
        while self._admit():
            pass
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
            item = self._share(sequence, num_left - kept, rows_left, len(self.running) - index)
            if item is None:
                continue
            if not self._hold_blocks(sequence, item.end):
                break
            sequence.num_started_tokens = item.end
            sequence.num_coming_tokens += item.is_made
            scheduled.append(item)
            num_left -= item.num_tokens
            rows_left -= item.num_rows
        return scheduled

    def update(
        self, scheduled: Items[Scheduled], made: Items[Made | Exception | None]
    ) -> list[Output]:
        """Take in what a step did; ``made`` holds one entry a scheduled share."""
        outputs = []
        for item, one in zip(scheduled, made, strict=True):
            sequence = item.sequence
            sequence.num_coming_tokens -= item.is_made
            if sequence.has_ended:  # while the step ran
                continue
            if isinstance(one, Exception):
                outputs.append(self.fail(sequence, one))
                continue
            # None are there if it was preempted since; what was sampled stands.
            sequence.num_computed_tokens = min(item.end, sequence.num_started_tokens)
            num_prompt_tokens = len(sequence.prompt.token_ids)
            self._publish(sequence, min(sequence.num_computed_tokens, num_prompt_tokens))
            if isinstance(one, Embedded):
                outputs.append(self._embedded(sequence, one))
            elif one is not None:
                outputs.append(self._append(sequence, one))
                outputs += self._append_forced(sequence, one.forced)
        return outputs

    def take_back(self, scheduled: Items[Scheduled]) -> None:
        """Let a step that was scheduled not have been, before anything of it is taken in."""
        for item in scheduled:
            sequence = item.sequence
            sequence.num_coming_tokens -= item.is_made
            sequence.num_started_tokens = min(sequence.num_started_tokens, item.first)

    def fail(self, sequence: Sequence, error: Exception) -> Output:
        """End one sequence with an error."""
        self.abort(sequence)
        return Output(sequence.prompt.request_id, error=error, choice=sequence.choice)

    def _append(self, sequence: Sequence, token: SampledToken) -> Output:
        sequence.token_ids.append(token.token_id)
        finish = None
        if token.token_id in sequence.prompt.stop_ids:
            finish = FinishReason.STOP
        elif sequence.num_output_tokens >= sequence.prompt.max_tokens:
            finish = FinishReason.LENGTH
        if finish is not None:
            if sequence.prompt.shares_output:
                self._publish(sequence, sequence.num_computed_tokens)
            self.abort(sequence)
        return Output(
            sequence.prompt.request_id,
            token,
            finish,
            choice=sequence.choice,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            prompt_tokens=tuple(sequence.prompt_tokens) if sequence.num_output_tokens == 1 else (),
        )

    def _embedded(self, sequence: Sequence, made: Embedded) -> Output:
        self.abort(sequence)
        return Output(
            sequence.prompt.request_id,
            finish_reason=FinishReason.STOP,
            num_cached_tokens=sequence.num_cached_tokens or 0,
            vector=made.vector,
        )

    def _append_forced(self, sequence: Sequence, token_ids: Items[int]) -> list[Output]:
        """What must follow stands at once: the next step catches up with all of it."""
        outputs = []
        for token_id in token_ids:
            if sequence.has_ended:
                break
            outputs.append(self._append(sequence, SampledToken(token_id)))
            self.stats.count("forced_tokens")
        return outputs

    def _num_step_tokens(self) -> int:
        if any(one.is_past_prompt for one in self.running):
            return self.budget.max_num_batched_tokens
        return self.budget.max_num_batched_tokens_alone

    def _share(
        self, sequence: Sequence, num_left: int, rows_left: int, num_behind: int
    ) -> Scheduled | None:
        """The next tokens of a sequence, as many as there are logit rows for.

        Rows that tell of a prompt leave one for everyone behind, if there are so many.
        """
        num_missing = sequence.num_missing_tokens
        num_tokens = min(num_missing, num_left)
        first = sequence.num_started_tokens
        first_told = None
        if sequence.num_untold_tokens:
            first_told = max(first, len(sequence.prompt_tokens))
            num_told = max(rows_left - num_behind, min(rows_left, 1))
            num_tokens = min(num_tokens, first_told - first + num_told)
        elif num_tokens == num_missing and rows_left <= 0:
            num_tokens -= 1
        if num_tokens <= 0:
            return None
        return Scheduled(sequence, first, num_tokens, num_tokens == num_missing, first_told)

    def _hold_blocks(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give a sequence the blocks of its first tokens, preempting whoever came last.

        False: that was the sequence itself, and it waits again.
        """
        num_held = len(sequence.block_ids)
        wanted = self.pool.blocks_for(num_tokens)
        if wanted <= num_held:
            return True
        while True:
            blocks = self.pool.allocate(wanted - num_held)
            if blocks is not None:
                sequence.block_ids.extend(blocks)
                return True
            last = self.running[-1]
            self.preempt(last)
            if last is sequence:
                return False

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it waits to catch up again."""
        self.running.remove(sequence)
        self._free(sequence)
        sequence.num_preemptions += 1
        self.stats.count("preemptions")
        insort(self.waiting, sequence, key=_order)

    def _admit(self) -> bool:
        """Let the first that waits run, with what is computed of it already.

        It and all that run must be able to catch up and then grow by a block, so that nobody is let
        in only to be preempted at once.
        """
        sequence = next(filter(_is_ready, self.waiting), None)
        if sequence is None or len(self.running) >= self.budget.max_num_seqs:
            return False
        self._take_over(sequence)
        promised = sum(map(self._num_wanted_blocks, self.running))
        if promised + self._num_wanted_blocks(sequence) > self.pool.num_free:
            self._free(sequence)
            return False
        self._copy_last_block(sequence)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if sequence.submitted_s is not None:
                waited_s = time.perf_counter() - sequence.submitted_s
                self.stats.observe("queue_seconds", waited_s)
            if sequence.hashes is not None:
                self.stats.count("prefix_cache_queries", len(sequence.prompt.token_ids))
                self.stats.count("prefix_cache_hits", sequence.num_computed_tokens)
        self.waiting.remove(sequence)
        insort(self.running, sequence, key=_order)
        self._note_overtaken(sequence)
        return True

    def _take_over(self, sequence: Sequence) -> None:
        """Hold the full blocks that others computed; the last token is always left to compute."""
        size = self.pool.block_size
        leader = sequence.leader
        if leader is not None and not leader.has_ended:
            num_blocks = (len(sequence.prompt.token_ids) - 1) // size
            sequence.block_ids = leader.block_ids[:num_blocks]
            self.pool.hold(sequence.block_ids)
        elif sequence.hashes is not None and not sequence.num_untold_tokens:
            num_blocks = (sequence.num_tokens - 1) // size
            hashes = sequence.hashes.of(sequence.token_ids, num_blocks)
            sequence.block_ids = self.pool.match(hashes)
        sequence.num_computed_tokens = sequence.num_started_tokens = len(sequence.block_ids) * size
        sequence.num_published_blocks = len(sequence.block_ids)

    def _copy_last_block(self, sequence: Sequence) -> None:
        """Begin as a copy of the leader's last block, not yet full: both will write to theirs."""
        leader, num_tokens = sequence.leader, len(sequence.prompt.token_ids) - 1
        if leader is None or leader.has_ended or num_tokens == sequence.num_computed_tokens:
            return
        copy = self.pool.copy(leader.block_ids[len(sequence.block_ids)])
        assert copy is not None, "room for it was counted"
        sequence.block_ids.append(copy)
        sequence.num_computed_tokens = sequence.num_started_tokens = num_tokens

    def _note_overtaken(self, sequence: Sequence) -> None:
        earlier = (one for one in self.waiting if one.arrival < sequence.arrival)
        overtaken = [one for one in earlier if _is_ready(one)]
        for one in overtaken:
            one.num_overtaken += 1
        if overtaken:
            self.waiting.sort(key=_order)

    def _publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Let the full blocks among a sequence's first tokens be found by others."""
        num_blocks = num_tokens // self.pool.block_size
        if sequence.hashes is None or num_blocks <= sequence.num_published_blocks:
            return
        hashes = sequence.hashes.of(sequence.token_ids, num_blocks)
        for index in range(sequence.num_published_blocks, num_blocks):
            self.pool.publish(sequence.block_ids[index], hashes[index], sequence.hashes.salt)
        sequence.num_published_blocks = num_blocks

    def _num_wanted_blocks(self, sequence: Sequence) -> int:
        num_tokens = min(sequence.num_tokens + self.pool.block_size, sequence.max_num_tokens)
        return self.pool.blocks_for(num_tokens) - len(sequence.block_ids)

    def _free(self, sequence: Sequence) -> None:
        if sequence.is_forgotten:
            self.pool.doom(sequence.block_ids)
        self.pool.free(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed_tokens = sequence.num_started_tokens = 0
        sequence.num_published_blocks = 0


def _order(sequence: Sequence) -> tuple[bool, int, int]:
    """What is overtaken often enough goes first; then by priority, then by arrival."""
    is_patient = sequence.num_overtaken < MAX_OVERTAKEN
    return (is_patient, sequence.prompt.priority if is_patient else 0, sequence.arrival)


def _is_ready(sequence: Sequence) -> bool:
    """Whether it may run: its own tokens are there, and what it would take over."""
    if sequence.num_coming_tokens or sequence.is_paused:
        return False
    leader = sequence.leader
    return leader is None or leader.has_ended or leader.has_computed_prompt


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
