"""Send a load to a server and take down what every request met.

Open loop: requests go out at drawn times (a Poisson process), however long the server takes.
Closed loop: so many at once, the next as soon as one ended.

Not here: figures (``figures``). Always true: every request of the load gives one answer.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from insitu.bench.client import Answer, Target, complete
from insitu.bench.errors import BenchError
from insitu.bench.load import Load, asks_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.bench.load import Ask
    from insitu.bench.watcher import Watcher

_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Run:
    """A load's answers; ``client_cpu_share`` is the generator's part of one processor."""

    load: Load
    target: Target
    answers: tuple[Answer, ...]
    wall_s: float
    client_cpu_share: float


def first_model(url: str, api_key: str | None) -> str:
    """The first name that the server lists."""
    parts = Target(url, "").parts
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        got = httpx.get(f"{base}/v1/models", headers=headers, timeout=10)
        got.raise_for_status()
        return str(got.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise BenchError(f"{base}/v1/models answers {error.response.status_code}.") from error
    except httpx.HTTPError as error:
        raise BenchError(f"Nothing answers at {base}: {error}. Is the server running?") from error
    except (ValueError, LookupError, TypeError) as error:
        raise BenchError(f"{base}/v1/models lists no model; name one with --model.") from error


def run_load(target: Target, load: Load, watch: Watcher) -> Run:
    """Send all of a load, after one request that is not counted."""
    return asyncio.run(_run(target, load, watch))


async def _run(target: Target, load: Load, watch: Watcher) -> Run:
    first = await complete(target, "The", _WARM_UP_TOKENS)
    if first.error:
        raise BenchError(f"The first request to {target.url} failed: {first.error}.")
    asks = asks_of(load)
    num_done = 0

    async def one(ask: Ask) -> Answer:
        nonlocal num_done
        answer = await complete(target, ask.prompt, ask.output_tokens)
        num_done += 1
        watch("requests", num_done, len(asks))
        return answer

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    answers = await (_open(asks, one) if load.rate_per_s is not None else _closed(load, asks, one))
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return Run(load, target, tuple(answers), wall_s, cpu_s / wall_s)


async def _open(asks: list[Ask], one: Callable[[Ask], Any]) -> list[Answer]:
    started_s = time.perf_counter()
    tasks = []
    for ask in asks:
        await asyncio.sleep(max(0.0, started_s + ask.at_s - time.perf_counter()))
        tasks.append(asyncio.create_task(one(ask)))
    return list(await asyncio.gather(*tasks))


async def _closed(load: Load, asks: list[Ask], one: Callable[[Ask], Any]) -> list[Answer]:
    answers: list[Answer | None] = [None] * len(asks)
    left = iter(enumerate(asks))

    async def worker() -> None:
        for index, ask in left:
            answers[index] = await one(ask)

    await asyncio.gather(*(worker() for _ in range(load.concurrency or 1)))
    return [answer for answer in answers if answer is not None]
