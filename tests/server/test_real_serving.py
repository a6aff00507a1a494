"""``insitu serve`` whole: streams drain on a signal, and every request is counted as it ended."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
from live_server import live_server
from server.asking import BASE, CHAT
from server.dictated import (
    Leaver,
    chat,
    dictated,
    read_ever_so_slowly,
    slow_steps,
    until_idle,
    write_dictated,
)
from server.test_door import sample, scrape

from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from insitu.llm.text_generator import TextGenerator

NUM_TOKENS = 3000


def read_stream(url: str, said: dict[int, str], index: int, started: threading.Semaphore) -> None:
    body = {**chat(stream=True, max_tokens=NUM_TOKENS), "model": "default"}
    with httpx.stream("POST", url + CHAT, json=body, timeout=250, trust_env=False) as answer:
        text = ""
        for part in answer.iter_text():
            if not text:
                started.release()
            text += part
        said[index] = text


def test_running_and_waiting_streams_finish_after_a_signal(tmp_path: Path) -> None:
    path = write_dictated(tmp_path, [b"a"], is_endless=True, max_model_len=4096)
    flags = ("--max-num-seqs", "4", "--kv-cache-bytes", "4MiB", "--drain-grace-s", "250")
    with live_server(path, *flags) as server:
        said: dict[int, str] = {}
        started = threading.Semaphore(0)
        threads = [
            threading.Thread(target=read_stream, args=(server.url, said, index, started))
            for index in range(6)
        ]
        for thread in threads:
            thread.start()
        for _ in range(4):
            assert started.acquire(timeout=30)
        end_s = time.monotonic() + 30
        while "insitu_num_requests_waiting 2.0" not in server.client.get("/metrics").text:
            assert time.monotonic() < end_s, "two of six wait"
        server.process.send_signal(signal.SIGTERM)
        signalled_s = time.monotonic()
        while server.client.get("/health").status_code == 200:
            assert time.monotonic() - signalled_s < 10
        is_live = server.client.get("/health/live").status_code == 200
        refused = server.client.post(CHAT, json={**chat(), "model": "default"})
        for thread in threads:
            thread.join(250)
        assert is_live
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) > 0
        assert server.process.wait(20) == 0
    for text in said.values():
        assert text.endswith("data: [DONE]\n\n")
        assert text.count('"finish_reason":"length"') == 1
        lines = [line[6:] for line in text.split("\n\n")[:-2]]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
        assert "".join(one.get("content", "") for one in deltas) == "a" * NUM_TOKENS
    assert len(said) == 6


def test_every_request_is_counted_as_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_steps(monkeypatch)
    read_ever_so_slowly(monkeypatch)  # or the two that run are paused, and those that wait begin
    how: dict[str, Any] = {"is_endless": True, "max_model_len": 100_000}
    with dictated(tmp_path, [b"a"], settings={"max_num_seqs": 2}, **how) as generator:
        scrapes = asyncio.run(seven_complete_five_leave_two_are_refused(generator))
    after = scrapes[-1]
    assert max(sample(one, "insitu_num_requests_waiting") for one in scrapes) > 0
    for name in ("insitu_requests_received_total", "insitu_generation_tokens_total"):
        values = [sample(one, name) for one in scrapes]
        assert values == sorted(values)
    outcomes = {"completed": 7, "cancelled": 5, "failed": 0, "refused": 2}
    for outcome, count in outcomes.items():
        assert sample(after, "insitu_requests_total", outcome=outcome) == count, outcome
        name = "gen_ai_server_request_duration_seconds_count"
        assert sample(after, name, outcome=outcome) == count
    assert sample(after, "insitu_requests_received_total") == sum(outcomes.values())
    for name in ("num_requests_running", "num_requests_waiting", "kv_blocks_used"):
        assert sample(after, f"insitu_{name}") == 0
    # Prompts of one token, whose first token came: seven completed and two cancelled.
    assert sample(after, "insitu_prompt_tokens_total") == 9
    assert sample(after, "insitu_generation_tokens_total") >= 5 * 9 + 3 + 2 * 9
    made = sample(after, "insitu_engine_sampled_tokens_total")
    assert made >= sample(after, "insitu_generation_tokens_total")
    finished = sample(after, "insitu_engine_sequences_finished_total")
    aborted = sample(after, "insitu_engine_sequences_aborted_total")
    assert finished + aborted == sample(after, "insitu_engine_sequences_submitted_total") == 13


async def seven_complete_five_leave_two_are_refused(generator: TextGenerator) -> list[str]:
    """What is scraped before, meanwhile, and once nothing is left."""
    app = create_app(generator, ServerOptions())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:

        async def post(**fields: Any) -> int:
            return (await client.post(CHAT, json=chat(**fields))).status_code

        scrapes = [await scrape(client)]
        assert {await post(max_tokens=9, stream=i % 2 > 0) for i in range(5)} == {200}
        assert await post(stop="aaa", max_tokens=90) == 200
        assert await post(n=2, max_tokens=9) == 200  # one request, whose prompt is counted once
        assert {await post(n=129), await post(max_tokens=0)} == {400}
        # Two run and go on; three wait behind them until their clients leave.
        run = [Leaver(app, chat(stream=True)) for _ in range(2)]
        for one in run:
            await one.saw(1)
        wait = [Leaver(app, chat(stream=True)) for _ in range(3)]
        while generator.stats().num_waiting < 3:
            await asyncio.sleep(0.001)
        scrapes.append(await scrape(client))
        for one in wait:
            await one.leave()
        scrapes.append(await scrape(client))
        for one in run:
            await one.leave()
        await until_idle(generator)
        return [*scrapes, await scrape(client)]
