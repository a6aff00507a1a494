"""A long beginning that requests share is computed once: counted in tokens, not in seconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tiny_model import write_gguf

from insitu.llm.build import build
from insitu.sampling_params import SamplingParams
from insitu.types import Caller, Message, Request

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator
    from insitu.types import Prepared, Usage

SYSTEM = Message("system", "river bridge stone " * 70)  # about a thousand tokens
MAX_TOKENS = 5
OWN_TOKENS = 60  # at most, of a question and the template around it


@pytest.fixture(params=[16, 32])
def generator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TextGenerator]:
    write_gguf(tmp_path / "m.gguf", max_model_len=2048)
    made = build(tmp_path / "m.gguf", name="tiny", threads=1, block_size=request.param)
    yield made
    made.close()


async def prepared(generator: TextGenerator, name: str, text: str, n: int = 1) -> Prepared:
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, seed=1, n=n)
    messages = (SYSTEM, Message("user", text))
    return await generator.prepare(Request(name, "tiny", messages=messages, sampling=sampling))


async def usages(generator: TextGenerator, asked: Prepared, caller: Caller) -> list[Usage]:
    deltas = [delta async for delta in generator.stream(asked, caller)]
    return [delta.usage for delta in deltas if delta.usage is not None]


def computed_tokens(generator: TextGenerator) -> int:
    return generator.stats().counters["computed_tokens"]


async def num_computed(
    generator: TextGenerator, asked: Prepared, caller: Caller | None = None
) -> tuple[int, int]:
    """Tokens computed for a request, and how many its usage says were found."""
    before = computed_tokens(generator)
    told = await usages(generator, asked, caller or Caller())
    while generator.stats().num_running:
        await asyncio.sleep(0.001)
    return computed_tokens(generator) - before, sum(one.cached_tokens for one in told)


def test_the_second_computes_its_own_question_alone(generator: TextGenerator) -> None:
    async def main() -> None:
        first = await prepared(generator, "1", "what?")
        second = await prepared(generator, "2", "and then?")
        assert first.num_prompt_tokens > 1000
        outputs = MAX_TOKENS - 1  # the last one is never fed back
        assert await num_computed(generator, first) == (first.num_prompt_tokens + outputs, 0)
        computed, cached = await num_computed(generator, second)
        assert computed == second.num_prompt_tokens - cached + outputs
        assert computed < OWN_TOKENS + generator.plan.block_size + outputs
        assert computed < 0.15 * first.num_prompt_tokens
        assert cached % generator.plan.block_size == 0

    asyncio.run(main())


def test_choices_share_all_but_their_own_tokens(generator: TextGenerator) -> None:
    async def main() -> None:
        first = await prepared(generator, "1", "what?", n=4)
        computed, _ = await num_computed(generator, first)
        # Each further choice computes the prompt's last token again, to sample after it.
        outputs = 4 * (MAX_TOKENS - 1) + 3
        assert computed == first.num_prompt_tokens + outputs

    asyncio.run(main())


def test_what_still_runs_is_found_too(generator: TextGenerator) -> None:
    async def main() -> None:
        first = await prepared(generator, "1", "what?")
        second = await prepared(generator, "2", "and then?")
        stream = generator.stream(first, Caller())
        await anext(stream)
        told = await usages(generator, second, Caller())
        await stream.aclose()  # type: ignore[attr-defined]
        assert told[0].cached_tokens > second.num_prompt_tokens - OWN_TOKENS - 32

    asyncio.run(main())


def test_another_tenant_computes_it_all(generator: TextGenerator) -> None:
    async def main() -> None:
        first = await prepared(generator, "1", "what?")
        again = await prepared(generator, "2", "what?")
        await num_computed(generator, first, Caller("one"))
        computed, cached = await num_computed(generator, again, Caller("other"))
        assert (computed, cached) == (first.num_prompt_tokens + MAX_TOKENS - 1, 0)

    asyncio.run(main())
