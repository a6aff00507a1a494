"""Forty requests, the ways a server may be asked them, and the first step at which two ways differ.

A ``Way`` says everything that must not matter: company, budgets, cache, preemption, threads,
instruction set, streaming, steps scheduled while one runs. ``ask_all`` starts a server of its own
for a way (an app over the real engine, without sockets), asks, and ends it: two ways are two
servers, one started after the other.

Always true: a way that promises something (a preemption, a found prompt, an eviction) is checked to
have happened; requests and ways are the same in every run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx
from server.asking import BASE, TEXT

from insitu.kernels.native import available_isas
from insitu.llm.build import build, plan
from insitu.sampling_params import SamplingParams
from insitu.server.app import create_app
from insitu.server.options import ServerOptions
from insitu.settings.fields import FIELDS
from insitu.types import Caller, Request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from insitu.engine.engine import Engine
    from insitu.llm.text_generator import TextGenerator

NUM_REQUESTS = 40
LONG = {7: 1.0, 16: 0.5, 27: 1.0, 36: 0.5}  # parts of the longest; two and two begin alike
MAX_PREEMPTIONS = 2  # of one sequence, by force
PREEMPTED_STEPS = 0.2

AXES: dict[str, tuple[Any, ...]] = {
    "kv_cache_dtype": tuple(FIELDS["kv_cache_dtype"].metadata["kind"].metavar.split("|")),
    "isa": available_isas(),
    "prefix_cache": ("off", "cold", "warm", "evicted"),
    "max_num_batched_tokens": (16, 64, 512),
    "threads": (1, 2, 3),
    "is_busy": (False, True),
    "is_preempted": (False, True),
    "block_size": (16, 32),
    "is_streamed": (False, True),
    "is_ahead": (False, True),
}


@dataclass(frozen=True)
class Way:
    """One way to be asked; ``kv_cache_dtype`` alone may change an answer."""

    kv_cache_dtype: str = "f16"
    isa: str = available_isas()[-1]
    prefix_cache: str = "off"
    max_num_batched_tokens: int = 512
    threads: int = 1
    is_busy: bool = False
    is_preempted: bool = False
    block_size: int = 32
    is_streamed: bool = False
    is_ahead: bool = False

    def __str__(self) -> str:
        """As a test's name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [
            name.removeprefix("is_") if value is True else f"{value}"
            for name, value in values.items()
            if value is not False
        ]
        return "-".join(words)


def covering_ways(arity: int, seed: int = 0) -> list[Way]:
    """Few ways, such that any values of ``arity`` axes meet in one of them at least."""
    chance = random.Random(seed)  # noqa: S311
    names = list(AXES)
    left = {
        met
        for chosen in itertools.combinations(names, arity)
        for met in itertools.product(*([(name, value) for value in AXES[name]] for name in chosen))
    }
    ways: list[Way] = []
    used: Counter[tuple[str, Any]] = Counter()
    while left:
        first = min(left, key=repr)
        drawn = [
            {name: chance.choice(AXES[name]) for name in names} | dict(first) for _ in range(60)
        ]
        # The most new meetings; of equal ones, the values that were used least.
        best = max(
            drawn,
            key=lambda one: (
                len(left & _meetings(one, arity)),
                -sum(used[item] for item in one.items()),
            ),
        )
        left -= _meetings(best, arity)
        used.update(best.items())
        ways.append(Way(**best))
    return ways


def _meetings(values: Mapping[str, Any], arity: int) -> set[Any]:
    return set(itertools.combinations([(name, values[name]) for name in AXES], arity))


@dataclass(frozen=True)
class Load:
    """A model, and requests of a size it can bear."""

    path: Path
    vocab_size: int
    long_tokens: int
    max_tokens: int
    kv_tokens: int  # of the pool: room for a few of them

    def bodies(self) -> list[dict[str, Any]]:
        """The requests, each with what varies: length, sampling, choices, what ends it."""
        chance = random.Random(40)  # noqa: S311
        openings = [self._ids(chance, self.long_tokens) for _ in range(3)]
        bodies = []
        for index in range(NUM_REQUESTS):
            is_long = index in LONG
            own = self._ids(chance, chance.randrange(1, 12))
            shared = chance.choice((0, 15, 16, 33, 70))
            if is_long:
                shared = int(self.long_tokens * LONG[index]) - 10
            body: dict[str, Any] = {
                "model": "default",
                "prompt": openings[index % 3][:shared] + own,
                "max_tokens": chance.randrange(2, self.max_tokens + 1),
                "return_token_ids": True,
                "ignore_eos": index % 4 == 0,
                "seed": index,
                **self._sampling(index, chance),
            }
            if index % 5 != 4:
                body["logprobs"] = (3, 0, 20, 1)[index % 4]
            if index % 7 == 2:
                body["priority"] = index % 3 - 1
            if index % 8 == 3:
                body["n"] = 2
            if index % 6 == 1:
                body["stop"] = ["e", " the", "a"]
                body["max_tokens"] = 2 * self.max_tokens
            bodies.append(body)
        return bodies

    def _ids(self, chance: random.Random, num_tokens: int) -> list[int]:
        return [chance.randrange(self.vocab_size) for _ in range(num_tokens)]

    def _sampling(self, index: int, chance: random.Random) -> dict[str, Any]:
        if index % 2 == 0:
            return {"temperature": 0}
        kinds: tuple[dict[str, Any], ...] = (
            {},
            {"top_p": 0.8},
            {"top_k": 12},
            {"min_p": 0.05},
            {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
        )
        return {"temperature": round(chance.uniform(0.3, 1.5), 2), **kinds[index // 2 % 5]}


Step = tuple[Any, ...]  # token id, log-probability, ids and log-probabilities of the likeliest
Answer = list[tuple[list[Step], str, str]]  # by choice: steps, text, finish reason


def ask_all(
    load: Load, way: Way, seed: int = 0, which: Sequence[int] | None = None
) -> list[Answer]:
    """Answers of a server of its own; ``seed`` decides arrivals, company and forced preemption."""
    chance = random.Random(seed)  # noqa: S311
    bodies = load.bodies()
    if which is not None:
        bodies = [bodies[index] for index in which]
    with _server(load, way) as generator:
        engine: Engine = generator._loop._engine
        engine.runs_ahead = way.is_ahead
        if way.is_preempted:
            _preempt_at_random(engine, chance)
        answers = asyncio.run(_ask_all(generator, load, way, bodies, chance))
        if which is None:
            _check_what_happened(engine, way)
        _wait_until_nothing_is_held(generator)
        return answers


@contextmanager
def _server(load: Load, way: Way) -> Iterator[TextGenerator]:
    with mock.patch.dict("os.environ", {"INSITU_ISA": way.isa}):
        settings: dict[str, Any] = {
            "threads": way.threads,
            "block_size": way.block_size,
            "kv_cache_dtype": way.kv_cache_dtype,
            "max_num_batched_tokens": way.max_num_batched_tokens,
            "prefix_caching": "off" if way.prefix_cache == "off" else "on",
        }
        whole = plan(load.path, **settings).plan
        token_bytes = whole.kv_cache_bytes // whole.kv_tokens
        generator = build(
            load.path, name="model", kv_cache_bytes=load.kv_tokens * token_bytes, **settings
        )
    try:
        yield generator
    finally:
        generator.close()


async def _ask_all(
    generator: TextGenerator,
    load: Load,
    way: Way,
    bodies: list[dict[str, Any]],
    chance: random.Random,
) -> list[Answer]:
    app = create_app(generator, ServerOptions())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=900) as client:
        bodies = [{**body, "stream": way.is_streamed} for body in bodies]
        if way.prefix_cache in {"warm", "evicted"}:
            for body in bodies:
                await _ask(client, {**body, "max_tokens": 1, "stop": None, "stream": False})
        if way.prefix_cache == "evicted":
            await _evict(client, generator, load, chance)
        if not way.is_busy:
            return [await _ask(client, body) for body in bodies]
        asked: list[Any] = [_ask_later(client, body, chance.uniform(0, 0.2)) for body in bodies]
        others = [_come_and_go(generator, load, index, chance.random()) for index in range(8)]
        order = [*asked, *others]
        chance.shuffle(order)
        tasks = {id(one): asyncio.ensure_future(one) for one in order}
        await asyncio.gather(*tasks.values())
        return [tasks[id(one)].result() for one in asked]


async def _ask_later(client: httpx.AsyncClient, body: dict[str, Any], delay_s: float) -> Answer:
    await asyncio.sleep(delay_s)
    return await _ask(client, body)


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Answer:
    response = await client.post(TEXT, json=body)
    assert response.status_code == 200, response.text
    if not body["stream"]:
        return [_choice([one]) for one in response.json()["choices"]]
    lines = [line[6:] for line in response.text.split("\n\n") if line.startswith("data: {")]
    chunks = [one for line in lines for one in json.loads(line)["choices"]]
    num_choices = body.get("n", 1)
    return [_choice([c for c in chunks if c["index"] == index]) for index in range(num_choices)]


def _choice(parts: list[dict[str, Any]]) -> tuple[list[Step], str, str]:
    steps: list[Step] = []
    for part in parts:
        told = part["logprobs"]
        if told is None:
            steps += [(token_id,) for token_id in part["token_ids"]]
            continue
        assert told["token_ids"] == part["token_ids"]
        steps += zip(
            told["token_ids"],
            told["token_logprobs"],
            told["top_token_ids"],
            told["top_token_logprobs"],
            strict=True,
        )
    return steps, "".join(part["text"] for part in parts), parts[-1]["finish_reason"]


async def _come_and_go(generator: TextGenerator, load: Load, index: int, when: float) -> None:
    """Somebody else's request, whose client may leave before its end."""
    await asyncio.sleep(when * 0.2)
    prompt = tuple((index * 7919 + 31 * i) % load.vocab_size for i in range(1 + int(when * 90)))
    sampling = SamplingParams(max_tokens=load.max_tokens, n=1 + index % 2)
    request = Request(f"other-{index}", "default", prompt=prompt, sampling=sampling)
    stream = generator.stream(await generator.prepare(request), Caller())
    num_left = int(when * 10) if index % 2 else 10**6
    async for _ in stream:
        if not num_left:
            break
        num_left -= 1
    await stream.aclose()  # type: ignore[attr-defined]
    if index == 5:  # all that is kept of prompts is wiped while others run
        await asyncio.to_thread(generator.forget, Caller())


async def _evict(
    client: httpx.AsyncClient, generator: TextGenerator, load: Load, chance: random.Random
) -> None:
    """Fill the pool with prompts that nobody asks again."""
    pool = generator._loop._engine.scheduler.pool
    kept = set(pool._by_hash)
    assert kept
    num_tokens = load.kv_tokens // 4
    for _ in range(5):
        prompt = [chance.randrange(load.vocab_size) for _ in range(num_tokens)]
        body = {"model": "default", "prompt": prompt, "max_tokens": 1, "return_token_ids": True}
        await _ask(client, {**body, "stream": False})
    assert not kept <= set(pool._by_hash), "nothing was evicted"


def _preempt_at_random(engine: Engine, chance: random.Random) -> None:
    """Before some steps, take the blocks of a sequence that runs."""
    step = engine.step

    def preempt_and_step() -> Any:
        scheduler = engine.scheduler
        movable = [one for one in scheduler.running if one.num_preemptions < MAX_PREEMPTIONS]
        if movable and chance.random() < PREEMPTED_STEPS:
            scheduler.preempt(chance.choice(movable))
        return step()

    engine.step = preempt_and_step  # type: ignore[method-assign]


def _wait_until_nothing_is_held(generator: TextGenerator) -> None:
    """What clients left behind is let go of within a step or two."""
    until_s = time.monotonic() + 10
    while True:
        stats = generator.stats()
        held = (stats.num_running, stats.num_waiting, stats.num_kv_blocks_used)
        if held == (0, 0, 0):
            return
        assert time.monotonic() < until_s, f"running, waiting, blocks: {held}"
        time.sleep(0.01)


def _check_what_happened(engine: Engine, way: Way) -> None:
    stats = engine.stats
    if way.is_preempted:
        assert stats.counter("preemptions") > 0
    hits = stats.counter("prefix_cache_hits")
    assert hits == 0 or way.prefix_cache != "off"
    assert hits > 0 or way.prefix_cache != "warm"


def first_difference(expected: list[Answer], got: list[Answer]) -> str | None:
    """Where two runs of the same requests part: request, choice, token, both values."""
    assert len(expected) == len(got)
    for request, (one, other) in enumerate(zip(expected, got, strict=True)):
        assert len(one) == len(other)
        for choice, ((steps, *end), (our_steps, *our_end)) in enumerate(
            zip(one, other, strict=True)
        ):
            where = f"request {request}, choice {choice}"
            for token, (step, our_step) in enumerate(itertools.zip_longest(steps, our_steps)):
                if step != our_step:
                    return f"{where}, token {token}: expected {step}, got {our_step}"
            if end != our_end:
                return f"{where}, its end: expected {end}, got {our_end}"
    return None
