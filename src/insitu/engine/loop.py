"""The engine's one thread: requests come in from any thread, outputs go out once a step.

It sleeps while there is nothing to do. Sinks that belong to an asyncio loop are called in that
loop, all of a step's in one ``call_soon_threadsafe``; others are called on the engine's thread and
must not block.

Not here: what a step does (``engine``).

Always true: every choice of a prompt submitted gets exactly one last output, unless it was
aborted; if the thread ends for any reason, whatever was open ends with an error and ``is_alive``
turns False.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from insitu.engine.scheduler import require_fit
from insitu.engine.sequence import Output, Prompt
from insitu.types import EngineStats, Refusal, RequestFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from insitu.engine.engine import Engine

    Sink = Callable[[Output], None]

logger = logging.getLogger("insitu.engine")

# A thread that waits for the GIL asks for it after this long. With Python's 5 ms every step would
# wait that long for a busy thread.
SWITCH_INTERVAL_S = 1e-4


def tune_process() -> None:
    """Set what the whole process needs for steady steps: called once where a program begins."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


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

    def __init__(self, engine: Engine, *, max_num_waiting: int = 256) -> None:
        self._engine = engine
        self._max_num_waiting = max_num_waiting
        self._wake = threading.Condition()
        # Guarded by _wake: what came in since the last step, and everything that has not ended.
        self._submitted: deque[_Open] = deque()
        # What the engine is to let go of: whole requests (None) or single choices of them.
        self._aborted: set[tuple[str, int | None]] = set()
        self._forgotten: set[bytes] = set()
        self._open: dict[str, _Open] = {}
        self._is_draining = False
        self._is_stopping = False
        self._is_alive = True
        self._thread = threading.Thread(target=self._run, name="insitu-engine", daemon=True)
        self._thread.start()

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
            num_open = sum(len(opened.left) for opened in self._open.values())
            if num_open + prompt.num_choices > budget.max_num_seqs + self._max_num_waiting:
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
            self._aborted.add((request_id, choice if opened.left else None))
            self._wake.notify_all()

    def forget(self, salt: bytes) -> None:
        """Wipe the blocks kept for prompts of a salt, before the next step; blocks until done."""
        with self._wake:
            self._forgotten.add(salt)
            self._wake.notify_all()
            self._wake.wait_for(lambda: salt not in self._forgotten or not self._is_alive)

    def stats(self) -> EngineStats:
        """Counters as they stand."""
        scheduler = self._engine.scheduler
        return self._engine.stats.snapshot(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + len(self._submitted),
            blocks=(scheduler.pool.num_blocks, scheduler.pool.num_held),
            is_alive=self.is_alive,
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
            self._thread.join()
        return is_clean

    def _run(self) -> None:
        error: Exception = RequestFailed("The engine was stopped.")
        try:
            while self._take_in():
                if self._engine.has_work:
                    self._deliver(self._engine.step())
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
            submitted, aborted = list(self._submitted), list(self._aborted)
            forgotten = list(self._forgotten)
            self._submitted.clear()
        for opened in submitted:
            self._engine.add(opened.prompt)
        for request_id, choice in aborted:
            self._engine.abort(request_id, choice)
        for salt in forgotten:
            self._engine.forget(salt)
        with self._wake:
            self._aborted.difference_update(aborted)
            self._forgotten.difference_update(forgotten)
            if forgotten:
                self._wake.notify_all()
        return True

    def _has_something(self) -> bool:
        asked = self._submitted or self._aborted or self._forgotten
        return bool(asked or self._engine.has_work or self._is_stopping)

    def _deliver(self, outputs: list[Output]) -> None:
        """Hand a step's outputs over, one call an event loop."""
        by_loop: dict[AbstractEventLoop | None, list[tuple[_Open, Output]]] = {}
        with self._wake:
            for output in outputs:
                opened = self._open.get(output.request_id)
                if opened is None or output.choice not in opened.left:
                    continue  # aborted while the step ran
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

    def _end(self, error: Exception) -> None:
        with self._wake:
            self._is_alive = False
            left = [(one, choice) for one, opened in self._open.items() for choice in opened.left]
            self._wake.notify_all()
        self._deliver([Output(one, error=error, choice=choice) for one, choice in left])
        try:
            self._engine.fail_all(error)
        except Exception:  # its bookkeeping may be what broke
            logger.exception("the engine's sequences could not be freed")
        finally:
            self._engine.runner.close()


def _call_sinks(items: list[tuple[_Open, Output]]) -> None:
    for opened, output in items:
        if output.choice in opened.aborted:
            continue
        try:
            opened.sink(output)
        except Exception:  # one listener's fault is not another's
            logger.exception("a listener failed")


def _too_busy(num_open: int, max_num_seqs: int) -> Refusal:
    return Refusal(
        f"The queue is full: {num_open} requests are running or waiting. Try again later.",
        code="queue_full",
        status=429,
        kind="rate_limit_error",
        retry_after_s=1 + num_open // (8 * max_num_seqs),
    )


def _unavailable(is_draining: bool) -> Refusal:
    why = "is shutting down" if is_draining else "has stopped"
    return Refusal(
        f"The engine {why} and takes no new requests.",
        code="shutting_down" if is_draining else "engine_stopped",
        status=503,
        kind="server_error",
        retry_after_s=5,
    )
