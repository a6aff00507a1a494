"""Every series is documented, and those that count what is held return to zero."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server.asking import BASE, CHAT, ask
from server.dictated import chat, dictated, until_idle
from server.test_door import cancel_after_first_byte, sample, scrape

from insitu.engine.stats import Stats
from insitu.server.app import create_app
from insitu.server.engine_series import SERIES
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.llm.text_generator import TextGenerator

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"\| `(\w+)` \| (\w+) \| ([\w, ]*)\| ")
ZERO_ONCE_IDLE = re.search(r"Once idle, these are 0: (.*?)\. One", PAGE.read_text("utf-8"), re.S)


@pytest.fixture
def generator(tmp_path: Path) -> Iterator[TextGenerator]:
    how: dict[str, Any] = {"is_endless": True, "max_model_len": 100_000}
    settings = {"max_num_seqs": 3, "max_num_waiting": 200}
    with dictated(tmp_path, [b"a"], settings=settings, **how) as made:
        yield made


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    rows = ROW.findall(PAGE.read_text("utf-8"))
    found = {
        name: (kind, frozenset(labels.replace(",", " ").split())) for name, kind, labels in rows
    }
    assert len(found) == len(rows), "a series stands twice in the table"
    return found


def exposed(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    found = {}
    for family in text_string_to_metric_families(text):
        labels = {name for one in family.samples for name in one.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, frozenset(labels))
        assert family.documentation.endswith(".")
    return found


def test_the_page_and_the_answer_agree(generator: TextGenerator) -> None:
    async def run() -> str:
        app = create_app(generator, ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            await client.post(CHAT, json=chat(max_tokens=2))
            return await scrape(client)

    text = asyncio.run(run())
    assert exposed(text) == documented()
    # A share of a scrape's lines would be "created" times, which nobody reads.
    assert "_created" not in text


def test_the_engine_counts_nothing_without_a_name() -> None:
    stats = Stats()
    assert set(SERIES) == {*stats.counters(), *stats.histograms()}


def test_an_engine_without_work_has_no_step_age() -> None:
    assert sample(ask("GET", "/metrics").text, "insitu_engine_step_age_seconds") == 0


def test_a_storm_of_cancellations_leaves_nothing(generator: TextGenerator) -> None:
    draw = random.Random(4)  # noqa: S311 - the same each time is what is wanted

    async def run() -> tuple[list[str], str]:
        app = create_app(generator, ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:

            async def one(index: int) -> None:
                await asyncio.sleep(draw.random() / 4)
                is_stream = index % 2 > 0
                if index % 3 == 0:
                    fields = {"timeout": 0.05, "n": 1 + index % 2}
                    await client.post(CHAT, json=chat(stream=is_stream, **fields))
                elif index % 3 == 1:
                    body = chat(stream=is_stream, n=1 + index % 3)
                    await cancel_after_first_byte(app, body, 0.05)
                else:
                    body = chat(stream=is_stream, stop="aaaaa" if index % 4 else None)
                    await client.post(CHAT, json={**body, "max_tokens": 9})

            storm = [asyncio.create_task(one(index)) for index in range(60)]
            meanwhile = []
            while not all(one.done() for one in storm):
                await asyncio.sleep(0.03)
                meanwhile.append(await scrape(client))
            await asyncio.gather(*storm)
            await until_idle(generator)
            return meanwhile, await scrape(client)

    meanwhile, after = asyncio.run(run())
    assert ZERO_ONCE_IDLE is not None
    names = re.findall(r"`(\w+)`", ZERO_ONCE_IDLE[1])
    assert len(names) == 9
    for name in names:
        assert f"\n{name} 0.0\n" in after, name
    held = set(names) - {"insitu_engine_queued_items", "insitu_engine_step_age_seconds"}
    for name in held:
        assert max(sample(one, name) for one in meanwhile) > 0, name
    causes = {one: sample(after, "insitu_requests_cancelled_total", cause=one) for one in CAUSES}
    assert sum(causes.values()) == sample(after, "insitu_requests_total", outcome="cancelled")
    assert causes == {"timeout": 20, "disconnect": 20, "drain": 0}
    assert sample(after, "insitu_requests_total", outcome="completed") == 20
    assert sample(after, "insitu_requests_received_total") == 60
    count = sample(after, "insitu_cancel_latency_seconds_count")
    assert count >= 10  # some had not been submitted yet
    within = sample(after, "insitu_cancel_latency_seconds_bucket", le="0.5")
    assert within >= 0.99 * count


CAUSES = ("timeout", "disconnect", "drain")
