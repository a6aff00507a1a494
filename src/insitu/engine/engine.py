"""One step: schedule, run, update.

Not here: threads (``loop``), text, memory sizes (``plan``).

Always true: every choice of a prompt added gives exactly one last output, unless it is aborted;
what goes wrong inside a step ends the sequences it goes wrong for and no others.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from insitu.engine.scheduler import Scheduler, require_fit
from insitu.engine.sequence import Output, Prompt, Sequence
from insitu.refusal import RequestFailed

if TYPE_CHECKING:
    from insitu.engine.block_pool import BlockPool
    from insitu.engine.runner import Runner
    from insitu.engine.scheduler import StepBudget
    from insitu.engine.sequence import SampledToken, Scheduled
    from insitu.engine.stats import Stats

logger = logging.getLogger("insitu.engine")


class Engine:
    """Sequences and the means to run them; used by one thread at a time."""

    def __init__(self, runner: Runner, pool: BlockPool, budget: StepBudget, stats: Stats) -> None:
        self.runner = runner
        self.scheduler = Scheduler(pool, budget, stats)
        self.stats = stats
        self._sequences: dict[str, dict[int, Sequence]] = {}  # by request and choice
        # What the step that runs moves; other threads may read it.
        self.in_step: list[Scheduled] = []

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self.scheduler.has_work

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

    def forget(self, salt: bytes) -> None:
        """Wipe what was kept for prompts whose salt begins so; what still runs, when it ends."""
        self.scheduler.forget(salt)
        self._do_chores()

    def step(self) -> list[Output]:
        """Run one forward pass and answer what each of its sequences gained."""
        started_s = time.perf_counter()
        scheduled = self.scheduler.schedule()
        assert scheduled, "a step must move something"
        self._note_shares(scheduled)
        self.in_step = scheduled
        outputs = self.scheduler.update(scheduled, self._run(scheduled))
        self.in_step = []
        self._do_chores()
        self._take_stock(outputs, started_s)
        return outputs

    def _run(self, scheduled: list[Scheduled]) -> list[SampledToken | Exception | None]:
        try:
            self._do_chores()
        except Exception:  # blocks that were to be copied were not
            return [self._failed() for _ in scheduled]
        try:
            return self.runner.run(scheduled)
        except Exception:  # whatever it was, the sequences that are not at fault live on
            # Run alone, a share gives the bits it gives in company, and only the culprit fails.
            self.stats.count("failed_steps")
            return [self._run_alone(item) for item in scheduled]

    def _run_alone(self, item: Scheduled) -> SampledToken | Exception | None:
        try:
            return self.runner.run([item])[0]
        except Exception:
            return self._failed()

    def _failed(self) -> RequestFailed:
        """To be called where an exception is being handled."""
        logger.exception("a step failed; a sequence of it ends")
        return RequestFailed("The step that this request was part of failed.")

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
            if item.sequence.has_computed_prompt:
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
            stats.count("steps")
            stats.observe("step_seconds", time.perf_counter() - started_s)
