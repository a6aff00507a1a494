"""The Generator a server is given: streams, aborts, refusals, draining."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from insitu.llm.build import build, plan
from insitu.refusal import Refusal, RequestFailed
from insitu.sampling_params import SamplingParams
from insitu.types import Caller, Delta, Message, Request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

CALLER = Caller()


@pytest.fixture
def generator(random_path: Path) -> Iterator[TextGenerator]:
    made = build(random_path, name="tiny", aliases=("other",), threads=1, max_num_waiting=2)
    yield made
    made.close()


def request(name: str = "r", **fields: Any) -> Request:
    sampling = SamplingParams(
        **{"temperature": 0.8, "seed": 5, "max_tokens": 30, "ignore_eos": True}
        | fields.pop("sampling", {})
    )
    base = Request(name, "tiny", sampling=sampling)
    if "messages" not in fields:
        fields = {"prompt": "hello world", **fields}
    return replace(base, **fields)


async def collect(generator: TextGenerator, asked: Request) -> list[Delta]:
    prepared = await generator.prepare(asked)
    return [delta async for delta in generator.stream(prepared, CALLER)]


async def rest_of(stream: AsyncIterator[Delta]) -> list[Delta]:
    return [delta async for delta in stream]


async def until_idle(generator: TextGenerator) -> None:
    for _ in range(1000):
        stats = generator.stats()
        if not stats.num_running and not stats.num_waiting and not stats.num_kv_blocks_used:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the engine does not become idle")


def test_streams_together_as_alone(generator: TextGenerator) -> None:
    async def main() -> None:
        alone = [await collect(generator, request("a", sampling={"seed": i})) for i in range(6)]
        crowd = await asyncio.gather(
            *(collect(generator, request(f"c{i}", sampling={"seed": i})) for i in range(6))
        )
        for one, other in zip(alone, crowd, strict=True):
            assert "".join(d.content for d in one) == "".join(d.content for d in other)
            assert [t for d in one for t in d.token_ids] == [t for d in other for t in d.token_ids]
            assert one[-1].usage == other[-1].usage
            assert sum(d.finish_reason is not None for d in one) == 1

    asyncio.run(main())


def test_closing_a_stream_aborts(generator: TextGenerator) -> None:
    async def main() -> None:
        prepared = await generator.prepare(request(sampling={"max_tokens": 400}))
        stream = generator.stream(prepared, CALLER)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        await until_idle(generator)
        assert generator.stats().counters["sequences_aborted"] == 1
        # Once it was let go of, the same id may be used again.
        await collect(generator, request())

    asyncio.run(main())


def test_abort_and_timeout_end_the_stream_with_an_error(generator: TextGenerator) -> None:
    async def main() -> None:
        prepared = await generator.prepare(request(sampling={"max_tokens": 400}))
        stream = generator.stream(prepared, CALLER)
        await anext(stream)
        generator.abort("r")
        with pytest.raises(RequestFailed, match="aborted"):
            await rest_of(stream)
        slow = request("slow", sampling={"max_tokens": 400}, timeout_s=0.001)
        with pytest.raises(RequestFailed, match=r"longer than 0\.001 s"):
            await collect(generator, slow)
        generator.abort("unknown")
        await until_idle(generator)

    asyncio.run(main())


def test_refusals(generator: TextGenerator) -> None:
    async def refused(**fields: Any) -> Refusal:
        with pytest.raises(Refusal) as caught:
            await generator.prepare(request(**fields))
        return caught.value

    async def main() -> None:
        unknown = await refused(model="/etc/passwd")
        assert (unknown.status, unknown.code) == (404, "model_not_found")
        assert "passwd" not in unknown.message
        for name in ("tiny", "other", "default"):
            await generator.prepare(request(model=name))
        role = await refused(messages=(Message("user", "a"), Message("robot", "b")))
        assert (role.status, role.param) == (400, "messages[1].role")
        for fields in ({"messages": (Message("user", "a"),), "prompt": "b"}, {"prompt": None}):
            assert (await refused(**fields)).status == 400
        with pytest.raises(Refusal):
            await generator.detokenize([1, 10**7])

    asyncio.run(main())


def test_tokenize_and_back(generator: TextGenerator) -> None:
    async def main() -> None:
        text = "hello wörld <|im_end|>"
        tokenized = await generator.tokenize(request(prompt=text, add_special_tokens=False))
        assert await generator.detokenize(tokenized.token_ids) == text
        assert tokenized.warnings
        chat = await generator.tokenize(request(messages=(Message("user", "hi"),)))
        assert chat.prompt_text is not None
        assert chat.prompt_text.startswith("<|im_start|>user\nhi<|im_end|>")
        assert await generator.detokenize(chat.token_ids) == chat.prompt_text

    asyncio.run(main())


def test_what_the_template_does_not_show_is_a_warning(generator: TextGenerator) -> None:
    async def main() -> None:
        plain = request(messages=(Message("user", "a"),))
        assert (await generator.prepare(plain)).warnings == ()
        more = replace(plain, template_kwargs={"enable_thinking": False})
        for prepared in (await generator.prepare(more), await generator.tokenize(more)):
            (warning,) = prepared.warnings
            assert "chat_template_kwargs.enable_thinking" in warning

    asyncio.run(main())


def test_describe_and_plan(generator: TextGenerator, random_path: Path) -> None:
    card = generator.describe()
    assert (card.name, card.aliases) == ("tiny", ("other",))
    assert card.digest.startswith("sha256:")
    assert card.has_chat_template
    assert (card.has_tools, card.has_reasoning, card.has_guides) == (False, False, True)
    assert card.numeric_settings["kv_cache_dtype"] == "f16"
    planned = plan(random_path, threads=1)
    assert planned.digest == generator.describe().digest
    assert planned.plan.as_dict() == {
        **generator.plan.as_dict(),
        "limit": planned.plan.as_dict()["limit"],  # what is left changes from moment to moment
    }


def test_drain_lets_streams_finish(generator: TextGenerator) -> None:
    async def main() -> None:
        expected = await collect(generator, request())
        prepared = [await generator.prepare(request(f"r{i}")) for i in range(4)]

        async def run(one: Any) -> list[Delta]:
            return [delta async for delta in generator.stream(one, CALLER)]

        tasks = [asyncio.create_task(run(one)) for one in prepared]
        await asyncio.sleep(0)
        is_clean = await asyncio.to_thread(generator.close, 30.0)
        assert is_clean
        for deltas in await asyncio.gather(*tasks):
            assert "".join(d.content for d in deltas) == "".join(d.content for d in expected)
        with pytest.raises(Refusal) as caught:
            await run(prepared[0])
        assert caught.value.status == 503

    asyncio.run(main())
