"""The ``Generator`` a server is given: requests in, deltas out, over one engine.

Not here: loading (``build``), the form of a delta (``answer``), refusals by content
(``preparing``).

Always true: the event loop never waits for a template or a tokenizer; closing a stream aborts its
request; a stream ends with a finish reason or raises.
"""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from insitu.engine.sequence import Output, Prompt
from insitu.llm.answer import Answer
from insitu.types import RequestFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from insitu.engine.loop import EngineLoop
    from insitu.engine.plan import Plan
    from insitu.llm.preparing import Preparer
    from insitu.types import Caller, Delta, EngineStats, ModelCard, Prepared, Request, Tokenized

_NUM_WORKERS = 2

T = TypeVar("T")
R = TypeVar("R")


class TextGenerator:
    """One model, ready to answer."""

    def __init__(
        self, loop: EngineLoop, preparer: Preparer, card: Callable[[], ModelCard], plan: Plan
    ) -> None:
        self.plan = plan
        self.preparer = preparer
        self._loop = loop
        self._card = card
        self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="insitu-prepare")
        # The engine's thread keeps the loop alive: what nobody can ask any more is closed.
        weakref.finalize(self, loop.close).atexit = False
        self._inboxes: dict[str, asyncio.Queue[Output]] = {}

    async def prepare(self, request: Request) -> Prepared:
        """Turn a request into ids, or raise ``Refusal``."""
        return await self._off_loop(self.preparer.prepare, request)

    async def stream(self, prepared: Prepared, caller: Caller) -> AsyncIterator[Delta]:
        """Yield deltas until the choice finished; closing the iterator aborts the request."""
        request_id, timeout_s = prepared.request.request_id, prepared.request.timeout_s
        inbox: asyncio.Queue[Output] = asyncio.Queue()
        answer = Answer(prepared, self.preparer.tokenizer)
        event_loop = asyncio.get_running_loop()
        self.submit(prepared, inbox.put_nowait, event_loop)
        self._inboxes[request_id] = inbox
        timer = None
        if timeout_s is not None:
            timer = event_loop.call_later(
                timeout_s, _fail, inbox, request_id, f"The request took longer than {timeout_s} s."
            )
        has_ended = False
        try:
            while not answer.is_finished:
                output = await inbox.get()
                has_ended = output.finish_reason is not None
                delta = answer.take(output)
                if delta is not None:
                    yield delta
        finally:
            if timer is not None:
                timer.cancel()
            del self._inboxes[request_id]
            if not has_ended:
                self._loop.abort(request_id)

    def submit(
        self,
        prepared: Prepared,
        sink: Callable[[Output], None],
        event_loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Hand a prepared request to the engine; ``sink`` gets its outputs."""
        self._loop.submit(self._prompt(prepared), sink, event_loop)

    def abort(self, request_id: str) -> None:
        """End a request now; its stream raises. Unknown ids are ignored."""
        self._loop.abort(request_id)
        inbox = self._inboxes.get(request_id)
        if inbox is not None:
            _fail(inbox, request_id, "The request was aborted.")

    async def tokenize(self, request: Request) -> Tokenized:
        """Ids of a prompt or of rendered messages, without running anything."""
        return await self._off_loop(self.preparer.tokenize, request)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of ids, control tokens shown."""
        return await self._off_loop(self.preparer.detokenize, token_ids)

    def describe(self) -> ModelCard:
        """What is served."""
        return self._card()

    def stats(self) -> EngineStats:
        """Counters as they stand."""
        return self._loop.stats()

    def close(self, drain_s: float = 0.0) -> bool:
        """Refuse what is new, let the rest finish for ``drain_s``, then end it with an error.

        Blocks; answers whether everything finished by itself.
        """
        is_clean = self._loop.close(drain_s)
        self._workers.shutdown(cancel_futures=True)
        return is_clean

    async def _off_loop(self, function: Callable[[T], R], argument: T) -> R:
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._workers, function, argument)

    def _prompt(self, prepared: Prepared) -> Prompt:
        sampling = prepared.request.sampling
        stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= self.preparer.tokenizer.end_ids
        chosen = sampling.over(self.preparer.sampling_defaults)
        return Prompt(
            request_id=prepared.request.request_id,
            token_ids=prepared.prompt_ids,
            max_tokens=prepared.max_tokens,
            seed=prepared.seed,
            temperature=chosen["temperature"],
            top_k=int(chosen["top_k"]) or None,
            top_p=chosen["top_p"],
            min_p=chosen["min_p"],
            stop_ids=stop_ids,
            num_logprobs=sampling.logprobs,
        )


def _fail(inbox: asyncio.Queue[Output], request_id: str, message: str) -> None:
    inbox.put_nowait(Output(request_id, error=RequestFailed(message)))
