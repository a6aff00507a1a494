"""One step: schedule, run, update; the next one is scheduled while one runs.

Not here: threads (``loop``), text, memory sizes (``plan``).

Always true: every choice of a prompt added gives exactly one last output, unless it is aborted;
what goes wrong inside a step ends the sequences it goes wrong for and no others; at most two steps
are under way, and what comes of them is as if each had been taken in before the next began.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.engine.scheduler import Scheduler, require_fit
from insitu.engine.sequence import Output, Prompt, Sequence
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from insitu.engine.block_pool import BlockPool
    from insitu.engine.runner import Runner, Underway
    from insitu.engine.scheduler import StepBudget
    from insitu.engine.sequence import Made, Scheduled
    from insitu.engine.stats import Stats

logger = logging.getLogger("insitu.engine")


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that is to be taken in; without ``underway`` it could not be started.

    ``is_spoilt``: blocks that were to be copied for it were not.
    """

    scheduled: list[Scheduled]
    started_s: float
    underway: Underway | None = None
    is_spoilt: bool = False


class Engine:
    """Sequences and the means to run them; used by one thread at a time."""

    def __init__(
        self,
        runner: Runner,
        pool: BlockPool,
        budget: StepBudget,
        stats: Stats,
        *,
        runs_ahead: bool = True,
    ) -> None:
        self.runner = runner
        self.runs_ahead = runs_ahead
        self.scheduler = Scheduler(pool, budget, stats)
        self.stats = stats
        self._sequences: dict[str, dict[int, Sequence]] = {}  # by request and choice
        # The step that runs; the one after it, unless it waits for what this one chooses.
        self._step: _Step | None = None
        self._ahead: _Step | None = None
        self._taken_in_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work or self._step is not None

    @property
    def in_step(self) -> list[Scheduled]:
        """What the step that runs moves; any thread may ask."""
        step = self._step
        return [] if step is None else step.scheduled

    @property
    def num_sequences(self) -> int:
        """Choices that have not ended."""
        return sum(map(len, list(self._sequences.values())))

    def add(self, prompt: Prompt, submitted_s: float | None = None) -> None:
        """Queue a prompt's choices; what can never fit is refused."""
        pool = self.scheduler.pool
        require_fit(pool, len(prompt.token_ids), prompt.max_tokens)
        assert prompt.request_id not in self._sequences
        first = Sequence(prompt)
        others = [Sequence(prompt, choice, first) for choice in range(1, prompt.num_choices)]
        self._sequences[prompt.request_id] = {one.choice: one for one in (first, *others)}
        for sequence in (first, *others):
            sequence.submitted_s = submitted_s
            self.scheduler.add(sequence)
        self.stats.count("sequences_submitted", prompt.num_choices)

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """Forget a choice, or all of a request; False if it is not here."""
        choices = self._sequences.get(request_id, {})
        wanted = list(choices) if choice is None else [one for one in choices if one == choice]
        for one in wanted:
            self.scheduler.abort(choices.pop(one))
            self.stats.count("sequences_aborted")
        self._do_chores()
        if not choices:
            self._sequences.pop(request_id, None)
        return bool(wanted)

    def pause(self, request_id: str, is_paused: bool) -> None:
        """Let a request's choices wait, holding no blocks, or let them go on."""
        for sequence in self._sequences.get(request_id, {}).values():
            if is_paused:
                self.scheduler.pause(sequence)
            else:
                sequence.is_paused = False
        self._do_chores()

    def forget(self, salt: bytes) -> None:
        """Wipe what was kept for prompts whose salt begins so; what still runs, when it ends."""
        self.scheduler.forget(salt)
        self._do_chores()

    def step(self) -> list[Output]:
        """Run one forward pass and answer what each of its sequences gained."""
        step = self._step = self._step or self._start(())
        assert step is not None, "a step must move something"
        if self.runs_ahead and not any(item.looks_back for item in step.scheduled):
            self._ahead = self._start(step.scheduled)
        outputs = self.scheduler.update(step.scheduled, self._finish(step))
        self._step, self._ahead = self._ahead, None
        self._do_chores()
        self._take_stock(outputs, step.started_s)
        return outputs

    def _start(self, before: Items[Scheduled]) -> _Step | None:
        """Have what can run run, after the step of ``before``; None if there is nothing."""
        started_s = time.perf_counter()
        scheduled = self.scheduler.schedule()
        if not scheduled:
            return None
        self._note_shares(scheduled)
        try:
            self._do_chores()
        except Exception:
            logger.exception("blocks could not be copied")
            return _Step(scheduled, started_s, is_spoilt=True)
        try:
            return _Step(scheduled, started_s, self.runner.start(scheduled, before))
        except Exception:
            logger.exception("a step could not be started")
            return _Step(scheduled, started_s)

    def _finish(self, step: _Step) -> list[Made | Exception | None]:
        if step.underway is not None:
            try:
                return self.runner.finish(step.underway)
            except Exception:
                logger.exception("a step failed")
        self._take_back_ahead()
        if step.is_spoilt:
            return [_failed() for _ in step.scheduled]
        # Whatever it was, the sequences that are not at fault live on: run alone, a share gives the
        # bits it gives in company, and only the culprit fails.
        self.stats.count("failed_steps")
        return [self._run_alone(item) for item in step.scheduled]

    def _take_back_ahead(self) -> None:
        """Have what was started upon a step that failed not have been; it is scheduled anew."""
        ahead = self._ahead
        if ahead is None or ahead.is_spoilt:
            return
        if ahead.underway is not None:
            self.runner.drop(ahead.underway)
        self.scheduler.take_back(ahead.scheduled)
        self._ahead = None

    def _run_alone(self, item: Scheduled) -> Made | Exception | None:
        if item.sequence.num_started_tokens < item.end:  # preempted since, to be made again
            return None
        try:
            return self.runner.finish(self.runner.start([item]))[0]
        except Exception:
            logger.exception("a share of a step failed; its sequence ends")
            return _failed()

    def fail_all(self, error: Exception) -> list[Output]:
        """End everything with an error."""
        outputs = [
            self.scheduler.fail(sequence, error)
            for choices in self._sequences.values()
            for sequence in choices.values()
        ]
        self._take_stock(outputs, None)
        return outputs

    def _do_chores(self) -> None:
        for source, block in self.scheduler.pool.take_chores():
            if source is None:
                self.runner.wipe_block(block)
            else:
                self.runner.copy_block(source, block)

    def _note_shares(self, scheduled: list[Scheduled]) -> None:
        """Count what a step is about to do: prefill is what lies within a sequence's prompt."""
        stats = self.stats
        num_tokens = num_decode_tokens = 0
        for item in scheduled:
            num_tokens += item.num_tokens
            if item.first >= len(item.sequence.prompt.token_ids):
                num_decode_tokens += item.num_tokens
        stats.count("computed_tokens", num_tokens)
        stats.observe("step_sequences", len(scheduled))
        stats.observe("step_tokens", num_tokens)
        stats.observe("step_prefill_tokens", num_tokens - num_decode_tokens)
        stats.observe("step_decode_tokens", num_decode_tokens)

    def _take_stock(self, outputs: list[Output], started_s: float | None) -> None:
        stats = self.stats
        for output in outputs:
            stats.count("sampled_tokens", output.token is not None)
            if output.is_last:
                choices = self._sequences[output.request_id]
                del choices[output.choice]
                if not choices:
                    del self._sequences[output.request_id]
                stats.count("sequences_failed" if output.error else "sequences_finished")
        if started_s is not None:
            now_s = time.perf_counter()
            stats.count("steps")
            # One that was started ahead runs from when the one before it had ended.
            stats.observe("step_seconds", now_s - max(started_s, self._taken_in_s))
            self._taken_in_s = now_s


def _failed() -> RequestFailed:
    return RequestFailed("The step that this request was part of failed.")
