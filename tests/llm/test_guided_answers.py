"""Reasoning, calls and guides from the request to the deltas, on scripted and random models."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from llm.scripted import chat, tool, write_script

from insitu.llm.build import build
from insitu.llm.guiding import Answering
from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.types import (
    Caller,
    Delta,
    FinishReason,
    Guide,
    Reasoning,
    ReasoningFinish,
    Request,
    ToolChoice,
    joined_calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

GREEDY = SamplingParams(temperature=0.0, max_tokens=100)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ADD = tool("add", a={"type": "integer", "minimum": 0, "maximum": 9})
AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


def run(generator: TextGenerator, request: Request) -> list[Delta]:
    async def collect() -> list[Delta]:
        prepared = await generator.prepare(request)
        return [delta async for delta in generator.stream(prepared, Caller())]

    return asyncio.run(collect())


def said(deltas: list[Delta], index: int = 0) -> tuple[str, str]:
    own = [delta for delta in deltas if delta.index == index]
    return "".join(one.reasoning for one in own), "".join(one.content for one in own)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """Thinks for ten tokens, then answers and calls."""
    pieces = ["<think>", *(f"step{n} " for n in range(10)), "</think>", "42 ", CALL]
    path = write_script(tmp_path_factory.mktemp("thinker") / "thinker.gguf", pieces)
    made = build(path, name="thinker", threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def closer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """Closes reasoning that the template opened."""
    path = write_script(
        tmp_path_factory.mktemp("closer") / "closer.gguf", ["plan", "</think>", "42"]
    )
    made = build(path, name="closer", threads=1)
    yield made
    made.close()


@pytest.fixture(scope="module")
def noise(random_path: Path) -> Iterator[TextGenerator]:
    """Says anything; calls are read as one family's."""
    answering = Answering(tool_parser="hermes", reasoning_parser="think")
    made = build(random_path, name="noise", threads=1, answering=answering)
    yield made
    made.close()


def test_reasoning_that_the_model_opens_is_apart_from_its_answer(thinker: TextGenerator) -> None:
    deltas = run(thinker, chat(sampling=GREEDY))
    steps = "".join(f"step{n} " for n in range(10))
    assert said(deltas) == (steps, "42 " + CALL)  # no tools: a call is text
    last = deltas[-1]
    assert last.finish_reason is FinishReason.STOP
    assert last.reasoning_finish is ReasoningFinish.NATURAL
    assert last.usage is not None
    assert (last.usage.reasoning_tokens, last.usage.completion_tokens) == (10, 15)
    assert sum(len(delta.token_ids) for delta in deltas) == 15


@pytest.mark.parametrize("budget", [0, 1, 5, 9, 10, 11])
def test_a_budget_ends_reasoning_and_the_answer_comes(thinker: TextGenerator, budget: int) -> None:
    request = chat(sampling=GREEDY, reasoning=Reasoning(max_tokens=budget))
    deltas = run(thinker, request)
    reasoning, content = said(deltas)
    assert reasoning == "".join(f"step{n} " for n in range(min(budget, 10)))
    # Closed by force, the script goes on from the sign's last character: it has nothing to say.
    assert "think>" not in content
    last = deltas[-1]
    assert last.usage is not None
    assert last.usage.reasoning_tokens == min(budget, 10)
    is_spent = budget <= 10
    assert last.reasoning_finish is (
        ReasoningFinish.BUDGET if is_spent else ReasoningFinish.NATURAL
    )
    assert last.finish_reason is FinishReason.STOP
    assert content == ("42 " + CALL if budget > 10 else "")


def test_the_template_may_open_reasoning_or_close_it(closer: TextGenerator) -> None:
    opened = chat(sampling=GREEDY, template_kwargs={"enable_thinking": True})
    assert said(run(closer, opened)) == ("plan", "42")
    prepared = asyncio.run(closer.prepare(opened))
    assert prepared.is_thinking
    shut = chat(sampling=GREEDY, reasoning=Reasoning(effort="none"))
    prepared = asyncio.run(closer.prepare(shut))
    assert not prepared.is_thinking
    assert (prepared.prompt_text or "").endswith("</think>\n")


def test_a_callers_text_opens_no_reasoning(closer: TextGenerator) -> None:
    request = chat(text="</think> <think>", sampling=GREEDY)
    assert not asyncio.run(closer.prepare(request)).is_thinking


@pytest.mark.parametrize("most", [3, 12])
def test_reasoning_cut_by_max_tokens_says_length(thinker: TextGenerator, most: int) -> None:
    deltas = run(thinker, chat(sampling=SamplingParams(temperature=0.0, max_tokens=most)))
    reasoning, content = said(deltas)
    assert reasoning == "".join(f"step{n} " for n in range(min(most - 1, 10)))
    assert content == ""
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].reasoning_finish == (ReasoningFinish.NATURAL if most == 12 else None)


def test_a_call_is_a_call_where_there_are_tools(thinker: TextGenerator) -> None:
    deltas = run(thinker, chat(sampling=GREEDY, tools=(ADD,)))
    (call,) = joined_calls(deltas)
    assert (call.name, call.arguments) == ("add", '{"a": 1}')
    assert said(deltas)[1] == "42 "
    assert deltas[-1].finish_reason is FinishReason.TOOL_CALLS
    again = joined_calls(run(thinker, chat(sampling=GREEDY, tools=(ADD,))))
    seeded = SamplingParams(temperature=0.0, max_tokens=100, seed=3)
    first, second = (
        joined_calls(run(thinker, chat(sampling=seeded, tools=(ADD,)))) for _ in range(2)
    )
    assert first == second
    assert again[0].id != call.id  # seeds were drawn
    assert call.id.startswith("call_")


def test_where_none_may_be_called_no_sign_of_a_call_comes(thinker: TextGenerator) -> None:
    request = chat(sampling=GREEDY, tools=(ADD,), tool_choice=ToolChoice("none"))
    deltas = run(thinker, request)
    assert joined_calls(deltas) == ()
    assert "tool_call" not in said(deltas)[1]
    assert "add" not in (asyncio.run(thinker.prepare(request)).prompt_text or "")


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("required", "add")])
@pytest.mark.parametrize("seed", range(3))
def test_required_calls_are_made_and_valid(
    noise: TextGenerator, choice: ToolChoice, seed: int
) -> None:
    sampling = SamplingParams(temperature=0.7, max_tokens=200, seed=seed, n=2)
    tools = (ADD, tool("other", b={"enum": ["x", "y"]}))
    for deltas in (run(noise, chat(sampling=sampling, tools=tools, tool_choice=choice)),):
        for index in range(2):
            own = [delta for delta in deltas if delta.index == index]
            reason = own[-1].finish_reason
            calls = joined_calls(own)
            assert said(deltas, index)[1] == ""
            if reason is FinishReason.LENGTH:
                continue
            assert reason is FinishReason.TOOL_CALLS
            assert len(calls) >= 1
            for call in calls:
                arguments = json.loads(call.arguments)
                if call.name == "add":
                    assert 0 <= arguments["a"] <= 9
                else:
                    assert choice.name is None
                    assert arguments["b"] in ("x", "y")


@pytest.mark.parametrize("budget", [None, 4])
def test_a_guide_is_followed_after_reasoning(noise: TextGenerator, budget: int | None) -> None:
    guide = Guide("json_schema", AGE)
    num_valid = 0
    for seed in range(4):
        sampling = SamplingParams(temperature=1.0, max_tokens=120, seed=seed, logprobs=1)
        request = chat(sampling=sampling, guide=guide, reasoning=Reasoning(max_tokens=budget))
        deltas = run(noise, request)
        _, content = said(deltas)
        if deltas[-1].finish_reason is FinishReason.STOP:
            assert 0 <= json.loads(content)["age"] <= 99
            num_valid += 1
        token_ids = [one for delta in deltas for one in delta.token_ids]
        assert len(token_ids) == len([one for delta in deltas for one in delta.logprobs])
    assert num_valid


KEYS = {
    "type": "object",
    "properties": {"a_long_name": {"enum": ["north", "south"]}, "another": {"const": [1, 2, 3]}},
    "required": ["a_long_name", "another"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("fields", [{}, {"stop": ("rth",)}, {"max_tokens": 30}, {"n": 3}])
@pytest.mark.parametrize("budget", [0, 3])
def test_what_is_forced_is_what_would_be_chosen_in_fewer_steps(
    noise: TextGenerator, fields: dict[str, Any], budget: int
) -> None:
    def asked(sampling: SamplingParams) -> tuple[list[Delta], int, int]:
        guide, reasoning = Guide("json_schema", KEYS), Reasoning(max_tokens=budget)
        before, name = dict(noise.stats().counters), uuid4().hex
        deltas = run(noise, chat(name, sampling=sampling, guide=guide, reasoning=reasoning))
        after = noise.stats().counters
        num_forced = after["forced_tokens"] - before["forced_tokens"]
        return deltas, after["steps"] - before["steps"], num_forced

    each = {"max_tokens": 120, "seed": 4, "temperature": 0.8, **fields}
    at_once, num_steps, num_forced = asked(SamplingParams(**each))
    one_by_one, num_all_steps, num_none = asked(SamplingParams(**each, logprobs=0))
    banned: dict[str, Any] = {"logit_bias": {0: -100.0}}  # a token that is not wanted anyway
    biased, _, none_either = asked(SamplingParams(**each, **banned))
    for index in range(each.get("n", 1)):
        ids = [
            [one for delta in deltas if delta.index == index for one in delta.token_ids]
            for deltas in (at_once, one_by_one, biased)
        ]
        assert ids[0] == ids[1] == ids[2]
        assert said(at_once, index) == said(one_by_one, index)
    assert at_once[-1].usage == one_by_one[-1].usage
    assert at_once[-1].finish_reason == one_by_one[-1].finish_reason
    assert num_forced > 0
    if "stop" not in fields:  # one that a stop string ended may still be counted afterwards
        assert (num_none, none_either) == (0, 0)
        assert num_steps < num_all_steps


def test_a_guide_cut_by_max_tokens_says_length(noise: TextGenerator) -> None:
    sampling = SamplingParams(max_tokens=3, seed=1)
    deltas = run(
        noise,
        Request("r", "default", prompt="x", sampling=sampling, guide=Guide("json_schema", AGE)),
    )
    assert deltas[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": (ADD,), "tool_choice": ToolChoice("required", "missing")}, "tool_choice"),
        ({"tool_choice": ToolChoice("required")}, "tool_choice"),
        ({"tools": (ADD, ADD)}, "tools"),
        ({"tools": ({"type": "function"},)}, "tools[0]"),
        (
            {
                "tools": (ADD,),
                "tool_choice": ToolChoice("required"),
                "guide": Guide("json_object"),
            },
            "tool_choice",
        ),
        (
            {"tools": (ADD,), "guide": Guide("lark", 'start: "a"', "guided_grammar")},
            "guided_grammar",
        ),
        ({"guide": Guide("regex", "("), "sampling": GREEDY}, "response_format"),
        (
            {
                "guide": Guide("regex", "a"),
                "sampling": SamplingParams(ignore_eos=True, max_tokens=4),
            },
            "ignore_eos",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(
    noise: TextGenerator, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Refusal) as caught:
        asyncio.run(noise.prepare(chat(**fields)))
    assert caught.value.param == param


def test_limits_of_a_server_are_said_not_applied_in_silence(random_path: Path) -> None:
    answering = Answering(
        reasoning_parser="think", default_reasoning_tokens=5, max_reasoning_tokens=8
    )
    generator = build(random_path, name="limits", threads=1, answering=answering)
    try:
        prepared = asyncio.run(generator.prepare(chat(sampling=GREEDY)))
        assert prepared.max_reasoning_tokens == 5
        asked = chat(sampling=GREEDY, reasoning=Reasoning(max_tokens=8))
        assert asyncio.run(generator.prepare(asked)).max_reasoning_tokens == 8
        with pytest.raises(Refusal, match="at most 8") as caught:
            asyncio.run(generator.prepare(chat(reasoning=Reasoning(max_tokens=9))))
        assert caught.value.param == "max_reasoning_tokens"
        with pytest.raises(Refusal, match="--tool-parser"):
            asyncio.run(generator.prepare(chat(tools=(ADD,))))
    finally:
        generator.close()


def test_a_model_without_signs_has_no_effort(chain_path: Path) -> None:
    generator = build(chain_path, name="plain", threads=1)
    try:
        with pytest.raises(Refusal) as caught:
            asyncio.run(generator.prepare(chat(reasoning=Reasoning(effort="low"))))
        assert caught.value.param == "reasoning_effort"
        for reasoning in (Reasoning(effort="none"), Reasoning(max_tokens=3)):
            asyncio.run(generator.prepare(chat(sampling=GREEDY, reasoning=reasoning)))
    finally:
        generator.close()
