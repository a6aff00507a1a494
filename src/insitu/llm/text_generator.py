"""The ``Generator`` a server is given: requests in, deltas out, over one engine.

Not here: loading (``build``), the form of a delta (``answer``), refusals by content
(``preparing``).

Always true: the event loop never waits for a template or a tokenizer; closing a stream aborts its
request; a stream ends with a finish reason or raises.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeVar

from insitu.engine.sequence import Output, Prompt
from insitu.llm.answer import Answers
from insitu.llm.best_of import likeliest
from insitu.llm.embedding import EmbeddedAnswer
from insitu.llm.inbox import Inbox
from insitu.refusal import RequestFailed, request_timed_out
from insitu.types import Caller, ToolChoice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

    from insitu.engine.loop import EngineLoop
    from insitu.engine.plan import Plan
    from insitu.llm.preparing import Preparer
    from insitu.measures import EngineStats
    from insitu.types import Delta, ModelCard, Prepared, Request, Tokenized

_NUM_WORKERS = 2
_SALT_PART_BYTES = 16
_NOBODY = Caller()

T = TypeVar("T")
R = TypeVar("R")


class TextGenerator:
    """One model, ready to answer."""

    def __init__(
        self,
        loop: EngineLoop,
        preparer: Preparer,
        card: Callable[[], ModelCard],
        plan: Plan,
        *,
        has_prefix_cache: bool = True,
    ) -> None:
        self.plan = plan
        self._has_prefix_cache = has_prefix_cache
        self.preparer = preparer
        self._loop = loop
        self._card = card
        self._workers = ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="insitu-prepare")
        # The engine's thread keeps the loop alive: what nobody can ask any more is closed.
        weakref.finalize(self, loop.close).atexit = False
        self._inboxes: dict[str, Inbox] = {}

    async def prepare(self, request: Request) -> Prepared:
        """Turn a request into ids, or raise ``Refusal``."""
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(request.timeout_s):
                prepared = await self._off_loop(self.preparer.prepare, request)
        except TimeoutError:
            assert request.timeout_s is not None
            raise request_timed_out(request.timeout_s) from None
        return replace(prepared, prepare_s=time.perf_counter() - started_s)

    async def stream(self, prepared: Prepared, caller: Caller) -> AsyncIterator[Delta]:
        """Yield deltas until every choice finished; closing the iterator aborts the request.

        With ``best_of`` all come when the last choice has ended.
        """
        sampling = prepared.request.sampling
        made: list[Delta] = []
        async with aclosing(self._stream_all(prepared, caller)) as deltas:
            async for delta in deltas:
                if sampling.drops_choices:
                    made.append(delta)
                else:
                    yield delta
        for delta in likeliest(made, sampling):
            yield delta

    async def _stream_all(self, prepared: Prepared, caller: Caller) -> AsyncGenerator[Delta]:
        request_id, timeout_s = prepared.request.request_id, prepared.request.timeout_s
        inbox = Inbox(partial(self._loop.pause, request_id))
        answers = self.answers(prepared)
        event_loop = asyncio.get_running_loop()
        self.submit(prepared, inbox.put, event_loop, caller)
        self._inboxes[request_id] = inbox
        timer = None
        if timeout_s is not None:
            left_s = timeout_s - prepared.prepare_s
            timer = event_loop.call_later(left_s, self._expire, request_id, timeout_s)
        try:
            while not answers.is_finished:
                output = await inbox.get()
                delta = answers.take(output)
                if delta is not None:
                    if delta.finish_reason is not None and not output.is_last:
                        self._loop.abort(request_id, output.choice)  # a stop string
                    yield delta
        finally:
            if timer is not None:
                timer.cancel()
            del self._inboxes[request_id]
            if not answers.is_finished:
                self._loop.abort(request_id)

    def submit(
        self,
        prepared: Prepared,
        sink: Callable[[Output], None],
        event_loop: asyncio.AbstractEventLoop | None = None,
        caller: Caller = _NOBODY,
    ) -> None:
        """Hand a prepared request to the engine; ``sink`` gets its outputs."""
        self._loop.submit(self._prompt(prepared, caller), sink, event_loop)

    def answers(self, prepared: Prepared) -> Answers | EmbeddedAnswer:
        """Who makes deltas of a request's outputs."""
        if prepared.request.embedding is not None:
            return EmbeddedAnswer(prepared)
        preparer = self.preparer
        return Answers(prepared, preparer.tokenizer, preparer.guiding.speech)

    def forget(self, caller: Caller) -> None:
        """Wipe the keys and values that were kept for a tenant; blocks until it is done."""
        self._loop.forget(_salt(caller.tenant))

    def abort(self, request_id: str, choice: int | None = None) -> None:
        """End a request, whose stream raises then, or one choice of it. Unknown ids are ignored."""
        self._loop.abort(request_id, choice)
        if choice is not None:
            return
        self._fail(request_id, RequestFailed("The request was aborted."))

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
        return replace(self._loop.stats(), num_streams=len(self._inboxes))

    def close(self, drain_s: float = 0.0) -> bool:
        """Refuse what is new, let the rest finish for ``drain_s``, then end it with an error.

        Blocks; answers whether everything finished by itself.
        """
        is_clean = self._loop.close(drain_s)
        self._workers.shutdown(cancel_futures=True)
        return is_clean

    def _expire(self, request_id: str, timeout_s: float) -> None:
        self._loop.abort(request_id)
        self._fail(request_id, request_timed_out(timeout_s))

    def _fail(self, request_id: str, error: Exception) -> None:
        inbox = self._inboxes.get(request_id)
        if inbox is not None:
            inbox.put(Output(request_id, error=error))

    async def _off_loop(self, function: Callable[[T], R], argument: T) -> R:
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._workers, function, argument)

    def _prompt(self, prepared: Prepared, caller: Caller) -> Prompt:
        request = prepared.request
        sampling = request.sampling
        is_embedded = request.embedding is not None
        salt = _salt(caller.tenant, request.cache_salt) if self._has_prefix_cache else None
        stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= self.preparer.tokenizer.end_ids
        return Prompt(
            request_id=request.request_id,
            token_ids=prepared.prompt_ids,
            max_tokens=1 if is_embedded else prepared.max_tokens,
            seed=prepared.seed,
            is_embedded=is_embedded,
            constraint=prepared.constraint,
            stop_ids=stop_ids,
            cache_salt=salt,
            # What lies beyond a stop string, or the only call, is nobody's.
            shares_output=not sampling.stop and request.tool_choice == ToolChoice(),
            priority=request.priority,
            **self.preparer.chooser.prompt_fields(sampling),
        )


def _salt(tenant: str | None, cache_salt: str | None = None) -> bytes:
    """Begins alike for all of a tenant's requests; the client's own part only ever narrows it."""
    parts = [repr(tenant)] if cache_salt is None else [repr(tenant), repr((tenant, cache_salt))]
    return b"".join(blake2b(p.encode(), digest_size=_SALT_PART_BYTES).digest() for p in parts)
