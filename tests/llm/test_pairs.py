"""Features in pairs: each cell is held to what the features promise alone.

Not here: what a feature does by itself. Always true: every pair of features (and each with all that
go with it) is asked for at least once; a cell's answer is made twice, alone and in company.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from llm.scripted import chat, tool

from insitu.llm.build import build
from insitu.llm.guiding import Answering
from insitu.sampling_params import SamplingParams
from insitu.types import (
    Caller,
    FinishReason,
    Guide,
    Reasoning,
    ReasoningFinish,
    ToolChoice,
    joined_calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.llm.text_generator import TextGenerator
    from insitu.types import Delta, Request

MAX_TOKENS = 32
BUDGET = 6
MIN_TOKENS = 12
AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
TOOLS = (tool("add", a={"type": "integer", "minimum": 0, "maximum": 9}), tool("now"))
FEATURES: dict[str, dict[str, Any]] = {
    "stop": {"sampling": {"stop": ("e", "9")}},
    "n": {"sampling": {"n": 3}},
    "logprobs": {"sampling": {"logprobs": 2}},
    "seed": {"sampling": {"seed": 11}},
    "greedy": {"sampling": {"temperature": 0.0}},
    "penalties": {
        "sampling": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "dry_multiplier": 0.8}
    },
    "min_tokens": {"sampling": {"min_tokens": MIN_TOKENS}},
    "bias": {"sampling": {"logit_bias": {101: -100.0, 97: 2.0}}},
    "truncation": {"sampling": {"top_k": 40, "top_p": 0.9, "min_p": 0.01}},
    "grammar": {"guide": Guide("json_schema", AGE)},
    "tools": {"tools": TOOLS, "tool_choice": ToolChoice("required")},
    "no calls": {"tools": TOOLS, "tool_choice": ToolChoice("none")},
    "one call": {"tools": TOOLS, "tool_choice": ToolChoice("auto", None, is_parallel=False)},
    "reasoning": {"template_kwargs": {"enable_thinking": True}},
    "budget": {"reasoning": Reasoning(max_tokens=BUDGET)},
    "priority": {"priority": -3},
    "salt": {"cache_salt": "s"},
}
# What excludes each other, and is refused or overwrites the same field.
EXCLUSIVE = [
    {"grammar", "tools"},
    {"tools", "no calls"},
    {"tools", "one call"},
    {"no calls", "one call"},
]
PAIRS = [
    pair
    for pair in combinations(FEATURES, 2)
    if not any(exclusive <= set(pair) for exclusive in EXCLUSIVE)
]
TRIPLES = [
    ("grammar", "reasoning", "budget"),
    ("grammar", "budget", "n"),
    ("tools", "reasoning", "budget"),
    ("tools", "n", "logprobs"),
    ("stop", "reasoning", "budget"),
    ("stop", "grammar", "reasoning"),
    ("one call", "reasoning", "logprobs"),
    ("penalties", "n", "logprobs"),
    ("penalties", "grammar", "budget"),
    ("min_tokens", "stop", "n"),
]


def asked(names: tuple[str, ...], request_id: str) -> Request:
    """A request with some features."""
    fields: dict[str, Any] = {}
    sampling: dict[str, Any] = {"max_tokens": MAX_TOKENS, "seed": 5, "temperature": 1.0}
    for name in names:
        own = dict(FEATURES[name])
        sampling |= own.pop("sampling", {})
        fields |= own
    return chat(request_id, sampling=SamplingParams(**sampling), **fields)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A random model whose pool holds two long answers, so that company means preemption."""
    from llm.scripted import TEMPLATE
    from tiny_model import write_gguf

    path = tmp_path_factory.mktemp("pairs") / "random.gguf"
    write_gguf(path, pairs={"tokenizer.chat_template": TEMPLATE}, max_model_len=512)
    made = build(
        path,
        name="pairs",
        threads=1,
        max_num_seqs=4,
        block_size=16,
        max_model_len=432,
        kv_cache_bytes=_bytes_of_blocks(27),
        answering=Answering(tool_parser="hermes", reasoning_parser="think"),
    )
    yield made
    made.close()


def _bytes_of_blocks(num_blocks: int) -> int:
    """The size of so many KV blocks of the tiny model: keys and values of 2 layers, f16."""
    return num_blocks * 16 * 2 * 2 * (2 * 16) * 2


@dataclass(frozen=True)
class Said:
    """What one choice came to."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str, str], ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason
    end: ReasoningFinish | None
    num_tokens: int
    num_reasoning: int


async def run(generator: TextGenerator, request: Request) -> tuple[list[Said], list[Delta]]:
    """A request's choices, and its deltas."""
    prepared = await generator.prepare(request)
    deltas = [delta async for delta in generator.stream(prepared, Caller())]
    return [said(deltas, index) for index in range(request.sampling.n)], deltas


def said(deltas: list[Delta], index: int) -> Said:
    """A choice of some deltas; only its last one says how it ended."""
    own = [delta for delta in deltas if delta.index == index]
    assert [one.finish_reason for one in own[:-1]] == [None] * (len(own) - 1)
    last = own[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    return Said(
        "".join(one.reasoning for one in own),
        "".join(one.content for one in own),
        tuple((call.id, call.name, call.arguments) for call in joined_calls(own)),
        tuple(token_id for one in own for token_id in one.token_ids),
        tuple(token.logprob for one in own for token in one.logprobs),
        last.finish_reason,
        last.reasoning_finish,
        last.usage.completion_tokens,
        last.usage.reasoning_tokens,
    )


def company(generator: TextGenerator, request: Request) -> tuple[list[Said], list[Said]]:
    """The same request alone, and beside three others, one of which is cancelled."""

    async def together() -> tuple[list[Said], list[Said]]:
        alone, _ = await run(generator, request)
        others = [
            replace(
                chat(
                    f"other{n}",
                    "x" * 170,
                    sampling=SamplingParams(max_tokens=40, seed=n, ignore_eos=True),
                ),
                priority=-9 * (n == 0),
            )
            for n in range(2)
        ]
        beside = asyncio.gather(*(run(generator, one) for one in others))
        leaving = asyncio.create_task(_leave(generator))
        again, _ = await run(generator, replace(request, request_id="again"))
        await beside
        await leaving
        return alone, again

    return asyncio.run(together())


async def _leave(generator: TextGenerator) -> None:
    """Begin a request, and go after its first delta."""
    prepared = await generator.prepare(chat("gone", sampling=SamplingParams(max_tokens=60, seed=3)))
    stream = generator.stream(prepared, Caller())
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]


def check(names: tuple[str, ...], request: Request, one: Said) -> None:
    """What each feature promises of a choice, whatever stands beside it."""
    sampling, has = request.sampling, set(names)
    shown = one.num_tokens if not sampling.stop else len(one.token_ids)
    assert one.num_tokens <= MAX_TOKENS
    assert len(one.token_ids) == shown
    assert (one.finish is FinishReason.LENGTH) <= (one.num_tokens == MAX_TOKENS)
    assert len(one.logprobs) == (len(one.token_ids) if "logprobs" in has else 0)
    assert one.num_reasoning <= one.num_tokens
    for sign in ("<think>", "</think>"):
        assert sign not in one.reasoning
    if "budget" in has:
        assert one.num_reasoning <= BUDGET
        assert (one.end is ReasoningFinish.BUDGET) <= (one.num_reasoning == BUDGET)
    else:
        assert one.end is not ReasoningFinish.BUDGET
    for stop in sampling.stop:
        assert stop not in one.content
    if "min_tokens" in has and not has & {"stop", "grammar", "tools"}:
        assert one.num_tokens >= MIN_TOKENS  # a stop string or a whole form may end it before
    if not has & {"tools", "one call"}:
        assert one.calls == ()
    check_form(names, one)


def check_form(names: tuple[str, ...], one: Said) -> None:
    """Whole answers match what they must."""
    has = set(names)
    if "one call" in has:
        assert len(one.calls) <= 1
    if "no calls" in has:
        assert "<tool_call>" not in one.content
    if "tools" in has:
        # Cut before its tool is known, a call is the text that there is.
        assert one.content == "" or one.finish is FinishReason.LENGTH
        assert "<tool_call>\n".startswith(one.content[:12])
        assert one.finish is not FinishReason.STOP
        whole = one.calls if one.finish is FinishReason.TOOL_CALLS else one.calls[:-1]
        for _, name, arguments in whole:
            value = json.loads(arguments)
            assert set(value) == ({"a"} if name == "add" else set())
    if "grammar" in has and one.finish is FinishReason.STOP and "stop" not in has:
        assert 0 <= json.loads(one.content)["age"] <= 99


@pytest.mark.parametrize("names", [*PAIRS, *TRIPLES], ids="+".join)
def test_features_hold_when_combined(generator: TextGenerator, names: tuple[str, ...]) -> None:
    request = asked(names, "first")
    alone, again = company(generator, request)
    assert again == alone
    for one in alone:
        check(names, request, one)
    if "n" in names:
        # A choice is what it would be if it were the only one: the first of them, asked alone.
        single = replace(request, sampling=replace(request.sampling, n=1), request_id="single")
        (only,), _ = asyncio.run(run(generator, single))
        assert only == alone[0]


def test_company_meant_preemption(generator: TextGenerator) -> None:
    for names in (("n", "logprobs"), ("n", "grammar")):
        alone, again = company(generator, asked(names, "first"))
        assert again == alone
    assert generator.stats().counters["preemptions"] > 0
