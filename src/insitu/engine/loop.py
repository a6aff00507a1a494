"""The engine's one thread: requests come in from any thread, outputs go out once a step.

It sleeps while there is nothing to do. Sinks that belong to an asyncio loop are called in that
loop, all of a step's in one ``call_soon_threadsafe``; others are called on the engine's thread and
must not block.

Not here: what a step does (``engine``).

Always true: every choice of a prompt submitted gets exactly one last output, unless it was
aborted; if the thread ends for any reason, whatever was open ends with an error and ``is_alive``
turns False. While a step is late, its requests have ended with an error and new ones are refused;
when it returns their blocks are freed and the rest goes on.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from insitu.engine.scheduler import require_fit
from insitu.engine.sequence import Output, Prompt
from insitu.engine.watchdog import Watchdog
from insitu.heap import tune_heap
from insitu.measures import EngineStats
from insitu.refusal import Refusal, RequestFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from insitu.engine.engine import Engine

    Sink = Callable[[Output], None]

logger = logging.getLogger("insitu.engine")

# A thread that waits for the GIL asks for it after this long. With Python's 5 ms every step would
# wait that long for a busy thread.
SWITCH_INTERVAL_S = 1e-4

# A step of 512 tokens through a large model on a slow machine takes a minute or two.
STEP_TIMEOUT_S = 300.0
_JOIN_S = 0.05


_LOOPS: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter goes: native memory must not outlive it, nor a thread run on."""
    for loop in list(_LOOPS):
        loop.close()


def tune_process() -> None:
    """Set what the whole process needs: called once where a program begins.

    Steps are steady, and memory that was let go of goes back to the system.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    tune_heap()


_LATE = "A step of the engine has not returned in time (--step-timeout-s)."


@dataclass(slots=True)
class _Open:
    """A prompt that was submitted and has not ended."""

    prompt: Prompt
    sink: Sink
    event_loop: AbstractEventLoop | None
    submitted_s: float
    left: set[int]  # choices that have not ended
    aborted: set[int] = field(default_factory=set)
    has_output: bool = False


class EngineLoop:
    """Runs an engine in a thread of its own."""

    def __init__(
        self,
        engine: Engine,
        *,
        max_num_waiting: int = 256,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> None:
        self._engine = engine
        self._max_num_waiting = max_num_waiting
        self._wake = threading.Condition()
        # Guarded by _wake: what came in since the last step, and everything that has not ended.
        self._submitted: deque[_Open] = deque()
        # What the engine is to let go of, and since when: whole requests (None) or single choices.
        self._aborted: dict[tuple[str, int | None], float] = {}
        self._forgotten: set[bytes] = set()
        self._pauses: dict[str, bool] = {}
        self._open: dict[str, _Open] = {}
        self._is_draining = False
        self._is_stopping = False
        self._is_alive = True
        self._watchdog = Watchdog(step_timeout_s, self._fail_late)
        self._thread = threading.Thread(target=self._run, name="insitu-engine", daemon=True)
        self._thread.start()
        _LOOPS.add(self)

    @property
    def is_alive(self) -> bool:
        """Whether requests can still be answered."""
        return self._is_alive and self._thread.is_alive()

    def submit(
        self, prompt: Prompt, sink: Sink, event_loop: AbstractEventLoop | None = None
    ) -> None:
        """Queue a prompt; ``sink`` gets its outputs, the last one included. Any thread may call."""
        budget = self._engine.scheduler.budget
        require_fit(self._engine.scheduler.pool, len(prompt.token_ids), prompt.max_tokens)
        with self._wake:
            if self._is_draining or not self.is_alive:
                raise _unavailable(self._is_draining)
            if self._watchdog.is_late:
                raise _late()
            num_places = budget.max_num_seqs + self._max_num_waiting
            if prompt.num_choices > num_places:
                raise _too_many(num_places)
            num_open = sum(len(opened.left) for opened in self._open.values())
            if num_open + prompt.num_choices > num_places:
                raise _too_busy(num_open, budget.max_num_seqs)
            # An aborted id stays taken until the engine has let go of it.
            if prompt.request_id in self._open or (prompt.request_id, None) in self._aborted:
                raise Refusal("This request id is in use.", code="duplicate_request_id")
            choices = set(range(prompt.num_choices))
            opened = _Open(prompt, sink, event_loop, time.perf_counter(), choices)
            self._open[prompt.request_id] = opened
            self._submitted.append(opened)
            self._wake.notify_all()

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, or one choice of it, within a step; its sink hears nothing more of it.

        Unknown ids are ignored.
        """
        with self._wake:
            opened = self._open.get(request_id)
            if opened is None or (choice is not None and choice not in opened.left):
                return
            if choice is None:
                opened.aborted.update(range(opened.prompt.num_choices))
            else:
                opened.aborted.add(choice)
            opened.left -= opened.aborted
            if not opened.left:
                del self._open[request_id]
            self._let_go(request_id, choice)

    def pause(self, request_id: str, is_paused: bool = True) -> None:
        """Make no tokens of a request, which holds no blocks meanwhile, or go on with it.

        What a step under way makes of it still comes. Unknown ids are ignored.
        """
        with self._wake:
            if request_id in self._open:
                self._pauses[request_id] = is_paused
                self._wake.notify_all()

    def forget(self, salt: bytes) -> None:
        """Wipe the blocks kept for prompts of a salt, before the next step; blocks until done."""
        with self._wake:
            self._forgotten.add(salt)
            self._wake.notify_all()
            self._wake.wait_for(lambda: salt not in self._forgotten or not self._is_alive)

    def stats(self) -> EngineStats:
        """Counters and gauges as they stand."""
        engine, pool = self._engine, self._engine.scheduler.pool
        return EngineStats(
            num_running=len(engine.scheduler.running),
            num_waiting=len(engine.scheduler.waiting) + len(self._submitted),
            num_kv_blocks=pool.num_blocks,
            num_kv_blocks_used=pool.num_held,
            num_sequences=engine.num_sequences,
            num_open=len(self._open),
            num_queued=len(self._submitted) + len(self._aborted) + len(self._forgotten),
            counters=engine.stats.counters(),
            histograms=engine.stats.histograms(),
            is_alive=self.is_alive,
            step_age_s=self._watchdog.age_s,
            is_late=self._watchdog.is_late,
            is_lost=self._watchdog.is_lost,
        )

    def close(self, drain_s: float = 0.0) -> bool:
        """Refuse what is new, let the rest finish for ``drain_s``, end what is left with an error.

        Answers whether everything finished by itself.
        """
        with self._wake:
            self._is_draining = True
            is_clean = self._wake.wait_for(lambda: not self._open, timeout=drain_s)
            self._is_stopping = True
            self._wake.notify_all()
        if self._thread is not threading.current_thread():
            while self._thread.is_alive() and not self._watchdog.is_late:
                self._thread.join(_JOIN_S)
            if self._thread.is_alive():
                self._fail_late(is_lost=True)
        return is_clean

    def _run(self) -> None:
        error: Exception = RequestFailed("The engine was stopped.")
        try:
            while self._take_in():
                if self._engine.has_work:
                    self._deliver(self._engine.step())
                if self._watchdog.end():
                    self._engine.stats.count("late_steps")
        except Exception:  # a fault of our own: say so and end everything rather than hang
            logger.exception("the engine's thread ends")
            error = RequestFailed("The engine failed.")
        finally:
            self._end(error)

    def _take_in(self) -> bool:
        """Sleep until there is something to do, take in what came; False when stopping."""
        with self._wake:
            self._wake.wait_for(self._has_something)
            if self._is_stopping:
                return False
            self._watchdog.begin()
            submitted, aborted = list(self._submitted), dict(self._aborted)
            forgotten = list(self._forgotten)
            pauses, self._pauses = self._pauses, {}
            self._submitted.clear()
        for opened in submitted:
            self._engine.add(opened.prompt, opened.submitted_s)
        for request_id, is_paused in pauses.items():
            self._engine.pause(request_id, is_paused)
        for (request_id, choice), asked_s in aborted.items():
            self._engine.abort(request_id, choice)
            self._engine.stats.observe("cancel_seconds", time.perf_counter() - asked_s)
        for salt in forgotten:
            self._engine.forget(salt)
        with self._wake:
            for key in aborted:
                del self._aborted[key]
            self._forgotten.difference_update(forgotten)
            if forgotten:
                self._wake.notify_all()
        return True

    def _has_something(self) -> bool:
        asked = self._submitted or self._aborted or self._forgotten or self._pauses
        return bool(asked or self._engine.has_work or self._is_stopping)

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand a step's outputs over, one call an event loop."""
        by_loop: dict[AbstractEventLoop | None, list[tuple[_Open, Output]]] = {}
        with self._wake:
            for output in outputs:
                opened = self._open.get(output.request_id)
                if opened is None or output.choice not in opened.left:
                    continue  # aborted while the step ran
                if output.token is not None:
                    self._note_first(opened)
                by_loop.setdefault(opened.event_loop, []).append((opened, output))
                if output.is_last:
                    opened.left.remove(output.choice)
                if not opened.left:
                    del self._open[output.request_id]
            if not self._open:
                self._wake.notify_all()
        for event_loop, items in by_loop.items():
            self._hand_over(event_loop, items)

    def _note_first(self, opened: _Open) -> None:
        if not opened.has_output:
            opened.has_output = True
            waited_s = time.perf_counter() - opened.submitted_s
            self._engine.stats.observe("first_token_seconds", waited_s)

    def _hand_over(
        self, event_loop: AbstractEventLoop | None, items: list[tuple[_Open, Output]]
    ) -> None:
        if event_loop is None:
            _call_sinks(items)
            return
        try:
            event_loop.call_soon_threadsafe(_call_sinks, items)
        except RuntimeError:  # the loop is closed: nobody listens any more
            for opened, _ in items:
                self.abort(opened.prompt.request_id)

    def _left(self) -> list[tuple[str, int]]:
        """Requests and choices of them that have not ended; only while holding ``_wake``."""
        return [(one, choice) for one, opened in self._open.items() for choice in opened.left]

    def _let_go(self, request_id: str, choice: int | None) -> None:
        """Have the engine forget what ended early; only while holding ``_wake``."""
        key = (request_id, choice if request_id in self._open else None)
        self._aborted.setdefault(key, time.perf_counter())
        self._wake.notify_all()

    def _fail_late(self, is_lost: bool) -> None:
        """End with an error what the step that does not return moves, or all when it is lost."""
        error = RequestFailed(_LATE, code="step_timeout", status=503)
        with self._wake:
            sequences = [item.sequence for item in self._engine.in_step]
            in_step = {(one.prompt.request_id, one.choice) for one in sequences}
            late = [key for key in self._left() if is_lost or key in in_step]
            self._deliver([Output(one, error=error, choice=choice) for one, choice in late])
            for one, choice in late:
                self._let_go(one, choice)

    def _end(self, error: Exception) -> None:
        with self._wake:
            self._is_alive = False
            left = self._left()
            self._wake.notify_all()
        self._deliver([Output(one, error=error, choice=choice) for one, choice in left])
        try:
            self._engine.fail_all(error)
        except Exception:  # its bookkeeping may be what broke
            logger.exception("the engine's sequences could not be freed")
        finally:
            self._watchdog.close()
            self._engine.runner.close()


def _call_sinks(items: list[tuple[_Open, Output]]) -> None:
    for opened, output in items:
        if output.choice in opened.aborted:
            continue
        try:
            opened.sink(output)
        except Exception:  # one listener's fault is not another's
            logger.exception("a listener failed")


def _too_many(num_places: int) -> Refusal:
    message = f"n must be at most {num_places}: --max-num-seqs and --max-num-waiting together."
    return Refusal(message, param="n", code="invalid_value")


def _too_busy(num_open: int, max_num_seqs: int) -> Refusal:
    return Refusal(
        f"The queue is full: {num_open} requests are running or waiting. Try again later.",
        code="queue_full",
        status=429,
        kind="rate_limit_error",
        retry_after_s=1 + num_open // (8 * max_num_seqs),
    )


def _late() -> Refusal:
    return Refusal(_LATE, code="step_timeout", status=503, kind="server_error", retry_after_s=5)


def _unavailable(is_draining: bool) -> Refusal:
    why = "is shutting down" if is_draining else "has stopped"
    return Refusal(
        f"The engine {why} and takes no new requests.",
        code="shutting_down" if is_draining else "engine_stopped",
        status=503,
        kind="server_error",
        retry_after_s=5,
    )
