"""Run batches: line after line, a few at a time, behind everybody who waits for an answer.

Not here: what a line may say (``lines``) or how things are kept (``store``). Always true: whatever
ends the process, a batch that had not ended goes on at the next start, without running again what
is on disk; a line that is too early for a limit waits, and is not an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from insitu.refusal import Refusal
from insitu.server.batches.batch import Batch
from insitu.server.batches.inside import ask
from insitu.server.batches.limits import MAX_LINES, NUM_AT_A_TIME
from insitu.server.batches.lines import (
    Results,
    answered,
    check_line,
    read_lines,
    refused,
    result_id,
)
from insitu.server.errors import as_refusal
from insitu.types import Caller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from starlette.types import ASGIApp

    from insitu.server.batches.inside import Answered
    from insitu.server.batches.lines import Asked, Line
    from insitu.server.batches.store import Room, Store

_TOO_EARLY = {429, 503}
_RETRY_S = 5.0
pause = asyncio.sleep


class Batches:
    """All batches that have not ended. ``app``: what answers their lines."""

    def __init__(self, store: Store, app: ASGIApp, max_line_bytes: int) -> None:
        self.store = store
        self._app = app
        self.max_line_bytes = max_line_bytes
        self._jobs: dict[str, Job] = {}
        self._places = asyncio.Semaphore(NUM_AT_A_TIME)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Go on with what had not ended; at the end leave things so that the next start can."""
        for room in self.store.rooms():
            for batch_id in room.ids("batch_"):
                batch = Batch(**(room.load(batch_id) or {}))
                if not batch.has_ended:
                    self._begin(batch, room)
        try:
            yield
        finally:
            jobs = list(self._jobs.values())
            for job in jobs:
                job.task.cancel()
            await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
            self.store.close()

    def add(self, batch: Batch, room: Room) -> None:
        """Keep a new batch, and begin it."""
        room.save(batch.id, batch.state())
        self._begin(batch, room)

    def find(self, batch_id: str, room: Room) -> Batch | None:
        """A tenant's batch as it is now."""
        job = self._jobs.get(batch_id)
        if job is not None and job.room.tenant == room.tenant:
            return job.batch
        state = room.load(batch_id) if batch_id.startswith("batch_") else None
        return None if state is None else Batch(**state)

    def open_batches(self, room: Room) -> list[Batch]:
        """A tenant's batches that have not ended."""
        return [one.batch for one in self._jobs.values() if one.room.tenant == room.tenant]

    def cancel(self, batch: Batch) -> None:
        """End a batch now; what is done stays."""
        job = self._jobs.get(batch.id)
        if job is not None and batch.status != "cancelling":
            job.cancel()

    def _begin(self, batch: Batch, room: Room) -> None:
        job = Job(batch, room, self)
        self._jobs[batch.id] = job
        job.task.add_done_callback(lambda _: self._jobs.pop(batch.id))

    async def ask(self, batch: Batch, line: Line, body: bytes, caller: Caller) -> Answered:
        """One line's request, when it has a place."""
        async with self._places:
            return await ask(self._app, batch.endpoint, body, caller, result_id(batch, line.number))


class Job:
    """One batch being run."""

    def __init__(self, batch: Batch, room: Room, batches: Batches) -> None:
        self.batch, self.room = batch, room
        self._batches = batches
        self._seen: set[str] = set()
        self._is_working = False
        self.task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """Stop asking; what is done stays."""
        self._become("cancelling")
        if self._is_working:
            self.task.cancel()

    async def _run(self) -> None:
        try:
            results = await asyncio.to_thread(Results, self.batch, self.room)
            try:
                end = await self._work_to_an_end(results)
            finally:
                results.close()
            if end == "completed":
                self._become("finalizing")
            results.publish()
            self._become(end)
        except Exception as error:  # a disk that is full, say: no batch is left hanging
            self._note_fault(as_refusal(error))
            self._become("failed")

    async def _work_to_an_end(self, results: Results) -> str:
        batch = self.batch
        if batch.status == "cancelling":
            return "cancelled"
        self._is_working = True
        try:
            return await self._work(results)
        except asyncio.CancelledError:
            if batch.status != "cancelling":
                raise  # the server ends; the batch does not
            return "cancelled"
        except Refusal as refusal:
            self._note_fault(refusal)
            return "failed"
        finally:
            self._is_working = False

    async def _work(self, results: Results) -> str:
        if self.batch.status == "validating":
            self.batch.num_lines = await asyncio.to_thread(self._count)
            if not 0 < self.batch.num_lines <= MAX_LINES:
                message = f"The input file must have 1 to {MAX_LINES} lines."
                raise Refusal(message, param="input_file_id", code="invalid_file")
            self._become("in_progress")
        slots = asyncio.Semaphore(2 * NUM_AT_A_TIME)
        lines = self._lines()
        async with asyncio.TaskGroup() as group:
            await slots.acquire()
            while (line := await asyncio.to_thread(self._next, lines, results)) is not None:
                task = group.create_task(self._one(*line, results))
                task.add_done_callback(lambda _: slots.release())
                await slots.acquire()
        return "expired" if self._is_late else "completed"

    def _lines(self) -> Iterator[Line]:
        path = self.room.content_path(self.batch.input_file_id)
        return read_lines(path, self._batches.max_line_bytes)

    def _count(self) -> int:
        return sum(1 for _ in self._lines())

    @property
    def _is_late(self) -> bool:
        return time.time() >= self.batch.expires_at

    def _next(self, lines: Iterator[Line], results: Results) -> tuple[Line, Asked | Refusal] | None:
        """The next line that is not done, and what it asks for or why it is refused."""
        for line in lines:
            asked = self._checked(line)
            if result_id(self.batch, line.number) not in results.done:
                return line, asked
        return None

    def _checked(self, line: Line) -> Asked | Refusal:
        try:
            asked = check_line(line, self.batch, self._batches.max_line_bytes)
        except Refusal as refusal:
            return refusal
        if asked.custom_id in self._seen:
            message = "custom_id stands on an earlier line too."
            return Refusal(message, param="custom_id", code="duplicate_custom_id")
        self._seen.add(asked.custom_id)
        return asked

    async def _one(self, line: Line, asked: Asked | Refusal, results: Results) -> None:
        try:
            if isinstance(asked, Refusal):
                raise asked
            answer = await self._answer(line, asked.body)
            body = json.loads(answer.body)
            result = answered(self.batch, line, asked.custom_id, answer.status, body)
        except Refusal as refusal:
            result = refused(self.batch, line, refusal)
        await asyncio.to_thread(results.write, result)

    async def _answer(self, line: Line, body: bytes) -> Answered:
        """The answer to a line, which waits as long as it is refused for now only."""
        while not self._is_late:
            caller = Caller(self.room.tenant)
            answer = await self._batches.ask(self.batch, line, body, caller)
            if answer.status not in _TOO_EARLY:
                return answer
            wait_s = float(answer.headers.get(b"retry-after", _RETRY_S))
            await pause(min(wait_s, max(0.0, self.batch.expires_at - time.time())))
        raise Refusal("The batch's time was over before this line ran.", code="batch_expired")

    def _become(self, status: str) -> None:
        self.batch.become(status)
        self.room.save(self.batch.id, self.batch.state())

    def _note_fault(self, refusal: Refusal) -> None:
        told = {"code": refusal.code, "message": refusal.message, "param": refusal.param}
        self.batch.errors = [{**told, "line": None}]
