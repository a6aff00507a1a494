"""An answer is the same alone and in any company, and a seed is all the chance there is."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from llm.counting import counted_anew

from insitu.llm.build import build
from insitu.llm.front_door import LLM
from insitu.sampling_params import SamplingParams
from insitu.types import Caller, Delta, Guide, Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

SEEDED = SamplingParams(max_tokens=24, temperature=0.8, seed=42, logprobs=2, ignore_eos=True)
GREEDY = replace(SEEDED, temperature=0.0, seed=1)


@pytest.fixture(scope="module")
def generator(random_path: Path) -> Iterator[TextGenerator]:
    made = build(random_path, name="tiny", threads=1)
    yield made
    made.close()


async def answer(
    generator: TextGenerator, name: str, sampling: SamplingParams, after: int = 0, **fields: Any
) -> list[Delta]:
    """All deltas of one request, submitted once ``after`` tokens of it were made elsewhere."""
    asked = Request(name, "tiny", sampling=sampling, **{"prompt": "hello world", **fields})
    prepared = await generator.prepare(asked)
    for _ in range(after):
        await asyncio.sleep(0.001)
    return [delta async for delta in generator.stream(prepared, Caller())]


def joined(deltas: list[Delta]) -> tuple[Any, ...]:
    return (
        "".join(delta.content for delta in deltas),
        [one for delta in deltas for one in delta.token_ids],
        [one for delta in deltas for one in delta.logprobs],
        deltas[-1].finish_reason,
        deltas[-1].usage,
    )


@pytest.mark.parametrize("mine", [SEEDED, GREEDY], ids=["seeded", "greedy"])
def test_in_any_company(generator: TextGenerator, mine: SamplingParams) -> None:
    unseeded = replace(SEEDED, seed=None)
    companies: list[list[SamplingParams]] = [
        [],
        [unseeded],
        [replace(SEEDED, seed=seed, temperature=0.1 * seed) for seed in range(7)],
        [mine],
        [GREEDY, unseeded, replace(SEEDED, top_k=1), replace(SEEDED, top_p=0.3)],
    ]

    async def main() -> None:
        alone = [joined(await answer(generator, "me", mine)) for _ in range(5)]
        assert alone == alone[:1] * 5
        for company in companies:
            others = [answer(generator, f"o{i}", one) for i, one in enumerate(company)]
            assert (
                joined((await asyncio.gather(*others, answer(generator, "me", mine)))[-1])
                == (alone[0])
            )
        copies = (answer(generator, f"c{i}", mine, after=i) for i in range(8))
        assert [joined(one) for one in await asyncio.gather(*copies)] == alone[:1] * 8

    asyncio.run(main())


def test_masked_biased_and_seeded_rows_share_a_batch(generator: TextGenerator) -> None:
    greedy = SamplingParams(max_tokens=60, temperature=0.0, seed=1, logprobs=1)
    favourite = asyncio.run(answer(generator, "it", replace(greedy, max_tokens=1)))
    bias = {favourite[0].token_ids[0]: -100.0}
    wanted = {"type": "object", "properties": {"a": {"enum": ["x", 5]}}, "required": ["a"]}
    schema = {**wanted, "additionalProperties": False}
    asked: dict[str, dict[str, Any]] = {
        "masked": {"sampling": greedy, "guide": Guide("json_schema", schema)},
        "seeded": {"sampling": replace(greedy, temperature=0.9, seed=7, ignore_eos=True)},
        "biased": {"sampling": replace(greedy, logit_bias=bias)},
    }

    async def main() -> None:
        alone = [joined(await answer(generator, name, **how)) for name, how in asked.items()]
        assert json.loads(alone[0][0])["a"] in ("x", 5)
        assert favourite[0].token_ids[0] not in alone[2][1]
        for text, _, logprobs, _, _ in alone:
            assert "nan" not in repr([one.logprob for one in logprobs]), text
        for _ in range(12):
            together = (answer(generator, name, **how) for name, how in asked.items())
            assert [joined(one) for one in await asyncio.gather(*together)] == alone

    asyncio.run(main())


def test_while_others_come_and_go(generator: TextGenerator) -> None:
    async def leave_early() -> None:
        for index in range(6):
            prepared = await generator.prepare(Request(f"g{index}", "tiny", prompt="s" * 50))
            stream = generator.stream(prepared, Caller())
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]

    async def main() -> None:
        long = replace(SEEDED, max_tokens=200)
        alone = joined(await answer(generator, "me", long))
        busy, _ = await asyncio.gather(answer(generator, "me", long), leave_early())
        assert joined(busy) == alone

    asyncio.run(main())


def test_preempted_streams_repeat_nothing(random_path: Path, generator: TextGenerator) -> None:
    # Room for one and a half of four: prompts of three blocks, 200 tokens each.
    block = generator.plan.block_size
    prompts = [tuple(range(10 + i, 10 + i + 3 * block)) for i in range(4)]
    each = [replace((SEEDED, GREEDY)[i % 2], seed=i, max_tokens=200, logprobs=i) for i in range(4)]

    async def run(made: TextGenerator) -> list[tuple[Any, ...]]:
        pairs = enumerate(zip(prompts, each, strict=True))
        streams = (answer(made, str(i), one, prompt=prompt) for i, (prompt, one) in pairs)
        return [joined(one) for one in await asyncio.gather(*streams)]

    expected = asyncio.run(run(generator))
    assert generator.stats().counters.get("preemptions", 0) == 0
    block_bytes = generator.plan.kv_cache_bytes // generator.plan.num_blocks
    num_blocks = (3 * block + 200) * 3 // 2 // block
    tight = build(random_path, name="tiny", threads=1, kv_cache_bytes=num_blocks * block_bytes)
    try:
        assert asyncio.run(run(tight)) == expected
        assert 0 < tight.stats().counters["preemptions"] < 4 * 10
        assert tight.stats().counters["sampled_tokens"] == 4 * 200
        assert tight.stats().num_kv_blocks_used == 0
    finally:
        tight.close()


@pytest.mark.parametrize("settings", [{"threads": 8}, {"max_num_batched_tokens": 16}])
def test_threads_and_chunks_move_no_bit(
    random_path: Path, random_llm: LLM, settings: dict[str, Any]
) -> None:
    prompts: list[list[int]] = [[7 + i] * length for i, length in enumerate(LENGTHS)]
    params = replace(GREEDY, max_tokens=4, logprobs=3)
    expected = [counted_anew(random_llm.generate([one], params)[0]) for one in prompts]
    with LLM(random_path, **settings) as llm:
        assert list(map(counted_anew, llm.generate(prompts, params))) == expected
        again = [llm.generate([one], params)[0] for one in prompts]
        assert list(map(counted_anew, again)) == expected
        assert any(one.usage.cached_tokens for one in again)


LENGTHS = (1, 15, 16, 17, 31, 32, 33, 48, 100)


@pytest.mark.parametrize("temperature", [-0.0, 1e-6, 1e-30, 1e-38, 1e-40, 1e-45, 5e-324])
def test_a_tiny_temperature_is_greedy(random_llm: LLM, temperature: float) -> None:
    (greedy,) = random_llm.generate("hello", replace(GREEDY, logprobs=None))
    each = [
        replace(GREEDY, logprobs=None, temperature=temperature, seed=seed) for seed in range(1, 6)
    ]
    for got in random_llm.generate(["hello"] * 5, each):
        assert got.token_ids == greedy.token_ids


@pytest.mark.parametrize("temperature", [1e6, 1e308])
def test_a_huge_temperature_is_even_over_what_is_left(random_llm: LLM, temperature: float) -> None:
    num_draws, num_left = 600, 4
    each = [
        SamplingParams(max_tokens=1, temperature=temperature, top_k=num_left, seed=seed)
        for seed in range(num_draws)
    ]
    drawn = Counter(one.token_ids for one in random_llm.generate(["hello"] * num_draws, each))
    assert len(drawn) == num_left
    # Four standard deviations of a fair draw; the seeds are always the same.
    assert all(abs(count - num_draws / num_left) < 4 * 10.6 for count in drawn.values()), drawn
