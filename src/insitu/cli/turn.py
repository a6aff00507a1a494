"""One answer on the terminal: a request run to its end, with Ctrl-C ending the answer alone.

Not here: reading what to ask (``chat``, ``generate``).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from insitu.types import Caller, Delta, FinishReason, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from insitu.types import Generator, Prepared, Usage


@dataclass(slots=True)
class Answer:
    """What an answer came to; ``finish_reason`` None means that it was stopped by hand."""

    prepared: Prepared | None = None
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None

    def take(self, delta: Delta) -> None:
        """Add what a delta brought."""
        self.text += delta.content
        self.token_ids += delta.token_ids
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.usage = delta.usage or self.usage


def new_request_id() -> str:
    """An id that no other request has."""
    return f"cli-{uuid.uuid4().hex}"


def run(
    generator: Generator,
    request: Request,
    runner: asyncio.Runner,
    show: Callable[[str], None] = lambda _: None,
    show_reasoning: Callable[[str], None] = lambda _: None,
) -> Answer:
    """Run a request to its end, showing text as it comes; Ctrl-C returns what there is."""
    answer = Answer()
    loop = runner.get_loop()
    task = loop.create_task(_answer(generator, request, answer, (show, show_reasoning)))
    with _interrupt_cancels(loop, task), contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    return answer


async def _answer(
    generator: Generator,
    request: Request,
    answer: Answer,
    shown: tuple[Callable[[str], None], Callable[[str], None]],
) -> None:
    show, show_reasoning = shown
    is_reasoning = False
    answer.prepared = await generator.prepare(request)
    deltas = generator.stream(answer.prepared, Caller())
    try:
        async for delta in deltas:
            answer.take(delta)
            if delta.reasoning:
                show_reasoning(delta.reasoning)
                is_reasoning = True
            if delta.content:
                if is_reasoning:
                    show_reasoning("\n\n")
                    is_reasoning = False
                show(delta.content)
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()  # aborts what still runs


@contextlib.contextmanager
def _interrupt_cancels(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> Iterator[None]:
    try:
        loop.add_signal_handler(signal.SIGINT, task.cancel)
    except (ValueError, RuntimeError, NotImplementedError):  # not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
