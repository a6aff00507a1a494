"""Requests that end before their answer does: time over, client gone, server going; and health."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from server.asking import (
    BASE,
    CHAT,
    TEXT,
    ask,
    chat_body,
    chat_scope,
    error_of,
    post,
    text_body,
)
from server.dictated import (
    Leaver,
    ask_together,
    chat,
    dictated,
    let_pass,
    read_ever_so_slowly,
    slow_steps,
    until_idle,
)
from server.scripted_generator import Scripted
from server.test_door import cancel_after_first_byte, sample, scrape
from stopped_clock import StoppedClock

from insitu.engine.runner import BatchRunner, Underway
from insitu.llm.preparing import Preparer
from insitu.llm.text_generator import TextGenerator
from insitu.server import answer, feed
from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from starlette.applications import Starlette


STEP_S = 0.25  # far more than a step of the tiny model takes
BUSY_S = 30.0  # the machine may be doing something else; what is not cancelled runs for minutes


@pytest.fixture
def generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TextGenerator]:
    read_ever_so_slowly(monkeypatch)  # what is paused holds no blocks, and lets others begin
    how: dict[str, Any] = {"is_endless": True, "max_model_len": 400_000}
    with dictated(tmp_path, [b"a"], settings={"max_num_seqs": 2}, **how) as made:
        yield made


def client_of(app: Starlette) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=BASE)


async def never_reads(app: Starlette, body: dict[str, Any], begun: asyncio.Event) -> None:
    """Call the app as a client that keeps its connection and stops reading."""
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> dict[str, Any]:
        if parts:
            return parts.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if begun.is_set() or b'"content":"a"' in message.get("body", b""):
            begun.set()
            await asyncio.Event().wait()

    await app(chat_scope(), receive, send)


def test_a_timeout_ends_a_request_with_its_name_and_gives_its_blocks_back(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)  # or the loop that times it is busy with its tokens

    async def run() -> str:
        app = create_app(generator, ServerOptions())
        async with client_of(app) as client:
            asked_s = time.monotonic()
            whole = await client.post(CHAT, json=chat(timeout=0.2))
            assert time.monotonic() - asked_s >= 0.2
            assert whole.status_code == 504
            error = error_of(whole)
            assert (error["code"], error["param"]) == ("request_timeout", None)
            assert error["message"] == "The request took longer than 0.2 s."
            await until_idle(generator)
            stream = Leaver(app, chat(timeout=60, stream=True, n=2))
            await stream.saw(3)
            let_pass(monkeypatch, 60)
            text = await stream.read_all()
            await until_idle(generator)
            *_, last, done, rest = text.split("\n\n")
            assert json.loads(last[6:])["error"]["code"] == "request_timeout"
            assert (done, rest) == ("data: [DONE]", "")
            assert '"finish_reason":"' not in text
            in_time = await client.post(CHAT, json=chat(timeout=60, max_tokens=3))
            assert in_time.json()["choices"][0]["finish_reason"] == "length"
            return await scrape(client)

    text = asyncio.run(run())
    assert sample(text, "insitu_requests_cancelled_total", cause="timeout") == 2
    assert sample(text, "insitu_requests_total", outcome="cancelled") == 2
    assert sample(text, "insitu_requests_total", outcome="completed") == 1


def test_what_waits_in_the_queue_times_out_too(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)

    async def run() -> None:
        app = create_app(generator, ServerOptions())
        async with client_of(app) as client:
            running = [asyncio.create_task(client.post(CHAT, json=chat(timeout=60))) for _ in "ab"]
            while generator.stats().num_running < 2:
                await asyncio.sleep(0.002)
            waited = await client.post(CHAT, json=chat(timeout=0.1, stream=True))
            assert not any(one.done() for one in running)
            # Its headers waited for a first delta, so it still has its status.
            assert waited.status_code == 504
            while generator.stats().num_waiting or generator.stats().num_queued:
                await asyncio.sleep(0.002)
            assert generator.stats().num_running == 2
            let_pass(monkeypatch, 60)
            assert [(await one).status_code for one in running] == [504, 504]

    asyncio.run(run())


def test_preparing_is_part_of_the_time(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, prepare_all = Preparer.prepare, TextGenerator.prepare

    def slowly(self: Preparer, request: Any) -> Any:
        time.sleep(0.3)
        return prepare(self, request)

    async def for_nearly_a_minute(self: TextGenerator, request: Any) -> Any:
        return replace(await prepare_all(self, request), prepare_s=59.9)

    monkeypatch.setattr(Preparer, "prepare", slowly)
    assert post(CHAT, chat(timeout=0.05), generator=generator).status_code == 504
    assert generator.stats().counters["sequences_submitted"] == 0
    monkeypatch.setattr(TextGenerator, "prepare", for_nearly_a_minute)
    asked_s = time.monotonic()
    assert post(CHAT, chat(timeout=60), generator=generator).status_code == 504
    assert time.monotonic() - asked_s < BUSY_S
    assert generator.stats().counters["sequences_submitted"] == 1


def test_the_server_has_a_limit_of_its_own() -> None:
    generator = Scripted()
    options = ServerOptions(request_timeout_s=2.5)
    for path, body in ((CHAT, chat_body), (TEXT, text_body)):
        too_long = error_of(post(path, body(timeout=3), options=options))
        assert (too_long["code"], too_long["param"]) == ("invalid_value", "timeout")
        assert "2.5 s" in too_long["message"]
        assert post(path, body(timeout=0)).status_code == 400
        assert post(path, body(), generator=generator, options=options).status_code == 200
        own = body(timeout=1)
        assert post(path, own, generator=generator, options=options).status_code == 200
        assert post(path, body(), generator=generator).status_code == 200
    assert [one.timeout_s for one in generator.asked] == [2.5, 1, None] * 2


def test_a_client_that_does_not_read_holds_no_blocks_once_its_time_is_over(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "_FLUSH_S", 600)
    slow_steps(monkeypatch)

    async def run() -> str:
        app = create_app(generator, ServerOptions())
        begun = asyncio.Event()
        body = chat(stream=True, timeout=60)
        stuck = asyncio.create_task(never_reads(app, body, begun))
        await begun.wait()
        assert generator.stats().num_kv_blocks_used
        let_pass(monkeypatch, 60)
        await until_idle(generator)
        assert app.state.service.lifecycle.num_active == 1
        let_pass(monkeypatch, 600)
        await asyncio.wait_for(stuck, BUSY_S)
        assert app.state.service.lifecycle.num_active == 0
        async with client_of(app) as client:
            return await scrape(client)

    assert sample(asyncio.run(run()), "insitu_requests_cancelled_total", cause="timeout") == 1


def test_a_client_that_reads_nothing_for_long_has_gone(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_READ_TIMEOUT_S", 0.2)

    async def run() -> str:
        app = create_app(generator, ServerOptions())
        begun = asyncio.Event()
        await asyncio.wait_for(never_reads(app, chat(stream=True), begun), 5)
        assert begun.is_set()
        assert app.state.service.lifecycle.num_active == 0
        await until_idle(generator)
        async with client_of(app) as client:
            return await scrape(client)

    text = asyncio.run(run())
    assert sample(text, "insitu_requests_cancelled_total", cause="disconnect") == 1


def test_the_end_of_a_drain_gives_blocks_back_whoever_reads(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)

    async def run() -> str:
        app = create_app(generator, ServerOptions())
        begun = asyncio.Event()
        stuck = asyncio.create_task(never_reads(app, chat(stream=True), begun))
        async with client_of(app) as client:
            whole = asyncio.create_task(client.post(CHAT, json=chat()))
            await begun.wait()
            while generator.stats().num_running < 2:
                await asyncio.sleep(0.002)
            waits = asyncio.create_task(client.post(CHAT, json=chat(stream=True)))
            while generator.stats().num_open < 3:
                await asyncio.sleep(0.002)
            drain = asyncio.create_task(app.state.service.lifecycle.drain(0.05))
            await asyncio.sleep(0.05)
            await until_idle(generator)
            assert not await drain
            assert (await whole).status_code == (await waits).status_code == 503
            stuck.cancel()  # as the server does with what is left
            await asyncio.gather(stuck, return_exceptions=True)
            return await scrape(client)

    text = asyncio.run(run())
    assert sample(text, "insitu_requests_cancelled_total", cause="drain") == 3
    assert sample(text, "insitu_requests_cancelled_total") == 3


def test_a_disconnect_is_a_cause_and_a_stop_string_is_none(generator: TextGenerator) -> None:
    async def run() -> str:
        app = create_app(generator, ServerOptions())
        async with client_of(app) as client:
            stopped = await client.post(CHAT, json=chat(stop="aaa"))
            assert stopped.json()["choices"][0]["finish_reason"] == "stop"
            await cancel_after_first_byte(app, chat(stream=True), 0)
            await until_idle(generator)
            return await scrape(client)

    text = asyncio.run(run())
    assert sample(text, "insitu_requests_cancelled_total", cause="disconnect") == 1
    assert sample(text, "insitu_requests_cancelled_total") == 1
    for cause in ("timeout", "drain"):
        assert f'insitu_requests_cancelled_total{{cause="{cause}"}} 0.0' in text


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
def test_ready_says_whether_work_is_taken(path: str) -> None:
    assert ask("GET", path).json() == {"status": "ready"}
    late = ask("GET", path, generator=Scripted(is_late=True))
    assert late.status_code == 503
    assert late.headers["retry-after"]
    assert error_of(late)["code"] == "step_timeout"
    assert "400 s" in error_of(late)["message"]
    dead = ask("GET", path, generator=Scripted(is_alive=False))
    assert error_of(dead)["code"] == "engine_stopped"


def test_live_says_whether_a_restart_is_needed() -> None:
    path = "/health/live"
    assert ask("GET", path, generator=Scripted(is_late=True)).json() == {"status": "live"}
    for lost in (Scripted(is_late=True, is_lost=True), Scripted(is_alive=False)):
        assert ask("GET", path, generator=lost).status_code == 503


def test_a_queue_has_the_size_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps(monkeypatch)  # so that all three have come before one is through
    settings = {"max_num_seqs": 1, "max_num_waiting": 1}
    with dictated(tmp_path, [b"a"], settings=settings, is_endless=True) as generator:
        assert error_of(post(CHAT, chat(n=3), generator=generator))["param"] == "n"
        limit = {"max_tokens": 400}
        answers = ask_together(generator, [chat(stream=True, **limit), chat(**limit), chat()])
    assert sorted(one.status_code for one in answers) == [200, 200, 429]
    refused = max(answers, key=lambda one: one.status_code)
    assert int(refused.headers["retry-after"]) >= 1
    assert error_of(refused)["code"] == "queue_full"


async def expect_late(client: httpx.AsyncClient, age_s: float) -> None:
    """A server whose step does not return says so, and takes nothing new."""
    assert (await client.get("/health/ready")).status_code == 503
    assert (await client.get("/health/live")).status_code == 200
    refused = await client.post(CHAT, json=chat())
    assert error_of(refused)["code"] == "step_timeout"
    late = await scrape(client)
    assert sample(late, "insitu_engine_step_late") == 1
    assert sample(late, "insitu_engine_step_age_seconds") == age_s


def test_a_step_that_hangs_takes_its_requests_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung, gate, finish = threading.Event(), threading.Event(), BatchRunner.finish

    def hangs(self: BatchRunner, underway: Underway) -> Any:
        hung.set()
        assert gate.wait(60)
        return finish(self, underway)

    monkeypatch.setattr(BatchRunner, "finish", hangs)
    clock = StoppedClock(monkeypatch)
    settings = {"max_num_seqs": 2, "step_timeout_s": 60}

    async def run(generator: TextGenerator) -> str:
        app = create_app(generator, ServerOptions())
        async with client_of(app) as client:

            async def start(**fields: Any) -> asyncio.Task[httpx.Response]:
                num_open = generator.stats().num_open
                task = asyncio.create_task(client.post(CHAT, json=chat(**fields)))
                while generator.stats().num_open == num_open:
                    await asyncio.sleep(0.002)
                return task

            whole = await start(n=2)
            assert await asyncio.to_thread(hung.wait, 60)
            waits = await start(max_tokens=3)
            assert (await client.get("/health/ready")).status_code == 200
            clock.pass_s(61)
            failed = await whole
            assert (failed.status_code, error_of(failed)["code"]) == (503, "step_timeout")
            await expect_late(client, 61)
            gate.set()
            assert (await waits).json()["choices"][0]["finish_reason"] == "length"
            await until_idle(generator)
            assert (await client.get("/health/ready")).status_code == 200
            return await scrape(client)

    with dictated(tmp_path, [b"a"], settings=settings, is_endless=True) as generator:
        try:
            text = asyncio.run(run(generator))
        finally:
            gate.set()
    outcomes = {"failed": 1, "completed": 1, "refused": 1, "cancelled": 0}
    for outcome, count in outcomes.items():
        assert sample(text, "insitu_requests_total", outcome=outcome) == count
    assert sample(text, "insitu_engine_late_steps_total") == 1
