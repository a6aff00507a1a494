"""Sixteen features over HTTP in rows that show every three of them together, on and off.

Each row's answer is made twice, once streamed and once whole: as the row says, and alone, cold and
undisturbed, with the seed the first reported. Both must be equal, and hold to what every feature of
the row promises by itself. Not here: what a feature does by itself; pairs by pairs
(``tests/llm/test_pairs.py``).
"""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from llm.scripted import TEMPLATE, tool
from server.asking import BASE, CHAT, TEXT, events
from server.covering import covering_rows
from tiny_model import write_gguf

from insitu.engine.scheduler import Scheduler
from insitu.llm.build import build
from insitu.llm.guiding import Answering
from insitu.llm.text_generator import TextGenerator
from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MAX_TOKENS, MIN_TOKENS, BUDGET, BLOCK_SIZE = 20, 8, 5, 16
MAX_NUM_SEQS, NUM_OTHERS = 4, 6
STOPS = ["e", "9", "\n"]
PROMPT = "The words of a prompt that is longer than two blocks of the cache."
AGE = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
FIELDS: dict[str, dict[str, Any]] = {
    "stop": {"stop": STOPS},
    "n": {"n": 3},
    "seed": {"seed": 11},
    "grammar": {"guided_json": AGE},
    "tools": {"tools": [tool("add", a={"type": "integer", "minimum": 0, "maximum": 9})]},
    "reasoning": {"chat_template_kwargs": {"enable_thinking": True}},
    "budget": {"max_reasoning_tokens": BUDGET},
    # So much that at this temperature no token comes twice.
    "penalties": {"repetition_penalty": 100, "frequency_penalty": 2, "presence_penalty": 2},
    "min_tokens": {"min_tokens": MIN_TOKENS},
    "echo": {"echo": True},
    "priority": {"priority": -3},
}
ELSEWHERE = ("stream", "logprobs", "prefix", "preemption", "cancel")
# A text completion knows no calls and no reasoning; an echo's log-probabilities are of one choice.
EXCLUDED = [
    {"echo", "tools"},
    {"echo", "reasoning"},
    {"echo", "budget"},
    {"echo", "logprobs", "n"},
]
ROWS = covering_rows([*FIELDS, *ELSEWHERE], EXCLUDED)


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """A random model that may answer anything; four sequences at once."""
    path = tmp_path_factory.mktemp("matrix") / "random.gguf"
    write_gguf(path, pairs={"tokenizer.chat_template": TEMPLATE}, max_model_len=512)
    made = build(
        path,
        name="tiny",
        threads=1,
        max_num_seqs=MAX_NUM_SEQS,
        block_size=BLOCK_SIZE,
        answering=Answering(tool_parser="hermes", reasoning_parser="think"),
    )
    yield made
    made.close()


class Watch:
    """Sees who begins and who loses its blocks.

    It can take blocks away, and hold all back until some requests are there.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.preempted: list[str] = []
        self.preempts = False
        self.num_awaited = self.num_before = 0
        self.is_complete = threading.Event()
        schedule, preempt = Scheduler.schedule, Scheduler.preempt
        submit = TextGenerator.submit

        def held_schedule(scheduler: Scheduler) -> Any:
            if self.num_awaited:
                assert self.is_complete.wait(20)
            for one in list(scheduler.running) if self.preempts else ():
                if (one.num_preemptions, one.num_output_tokens) in {(0, 2), (1, 7)}:
                    scheduler.preempt(one)
            scheduled = schedule(scheduler)
            for item in scheduled:
                request_id = item.sequence.prompt.request_id
                self.begun += [request_id] if request_id not in self.begun else []
            return scheduled

        def told_preempt(scheduler: Scheduler, sequence: Any) -> None:
            self.preempted.append(sequence.prompt.request_id)
            preempt(scheduler, sequence)

        def counted_submit(made: TextGenerator, *how: Any) -> None:
            submit(made, *how)
            if self.num_awaited:
                self.num_awaited -= 1
                if not self.num_awaited:
                    self.is_complete.set()

        monkeypatch.setattr(Scheduler, "schedule", held_schedule)
        monkeypatch.setattr(Scheduler, "preempt", told_preempt)
        monkeypatch.setattr(TextGenerator, "submit", counted_submit)

    def hold_until(self, num_requests: int) -> None:
        """Let no step be until so many requests are there."""
        self.is_complete.clear()
        self.num_awaited = num_requests
        self.num_before = len(self.begun)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def body_of(row: frozenset[str], salt: str, **more: Any) -> dict[str, Any]:
    """What a row asks for."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": MAX_TOKENS, "temperature": 0.2}
    body["cache_salt"] = salt
    if "echo" in row:
        body |= {"prompt": PROMPT, "logprobs": 2} if "logprobs" in row else {"prompt": PROMPT}
    else:
        body |= {"messages": [{"role": "user", "content": PROMPT}], "return_token_ids": True}
        body |= {"logprobs": True, "top_logprobs": 2} if "logprobs" in row else {}
    for name, fields in FIELDS.items():
        body |= fields if name in row else {}
    if "tools" in row and "grammar" not in row:  # with a grammar the answer is calls or the form
        body["tool_choice"] = "required"
    return {**body, **more}


@dataclass
class Answer:
    """A whole answer, or a stream that was put together to one."""

    id: str
    seed: int
    usage: dict[str, Any]
    choices: list[dict[str, Any]]


def whole(response: httpx.Response) -> Answer:
    """An answer as it came."""
    assert response.status_code == 200, response.text
    body = response.json()
    assert "warnings" not in body
    assert [one["index"] for one in body["choices"]] == list(range(len(body["choices"])))
    return Answer(body["id"], body["seed"], body["usage"], [_said([c]) for c in body["choices"]])


def streamed(response: httpx.Response) -> Answer:
    """A stream's chunks as the answer they make."""
    assert response.status_code == 200, response.text
    chunks = events(response)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    parts: dict[int, list[dict[str, Any]]] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        parts.setdefault(choice["index"], []).append(choice)
    for own in parts.values():
        assert [one["finish_reason"] for one in own[:-1]] == [None] * (len(own) - 1)
    choices = [_said(parts[index]) for index in range(len(parts))]
    return Answer(chunks[0]["id"], chunks[0]["seed"], chunks[-1]["usage"], choices)


def _said(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What a choice's parts say together; a whole choice is one part."""
    words = [part.get("delta", part.get("message", part)) for part in parts]
    said: dict[str, Any] = {"calls": [], "logprobs": {}}
    said["text"] = "".join(one.get("content") or one.get("text") or "" for one in words)
    said["reasoning"] = "".join(one.get("reasoning_content") or "" for one in words)
    said["token_ids"] = [token_id for part in parts for token_id in part.get("token_ids", ())]
    for place, piece in enumerate(p for one in words for p in one.get("tool_calls") or ()):
        if piece.get("index", place) == len(said["calls"]):
            said["calls"].append(dict(piece["function"]) | {"id": piece["id"]})
        else:
            said["calls"][piece["index"]]["arguments"] += piece["function"]["arguments"]
    for one in (part["logprobs"] for part in parts if part["logprobs"]):
        for key, values in one.items():
            said["logprobs"].setdefault(key, []).extend(values or ())
    said["finish_reason"] = parts[-1]["finish_reason"]
    said["reasoning_finish"] = parts[-1].get("reasoning_finish")
    return said


@asynccontextmanager
async def client_of(generator: TextGenerator) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app of its own."""
    transport = httpx.ASGITransport(app=create_app(generator, ServerOptions()))
    async with httpx.AsyncClient(transport=transport, base_url=BASE, timeout=60) as client:
        yield client


async def asked(client: httpx.AsyncClient, body: dict[str, Any], *, is_stream: bool) -> Answer:
    """An answer by one of the two ways."""
    path = TEXT if "prompt" in body else CHAT
    if not is_stream:
        return whole(await client.post(path, json=body))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    return streamed(await client.post(path, json={**body, **options}))


async def leave(generator: TextGenerator, row: frozenset[str]) -> None:
    """Ask for the same, and go when it has begun."""
    async with client_of(generator) as client:
        request = asyncio.create_task(
            asked(client, body_of(row, "gone", n=2, max_tokens=300), is_stream=True)
        )
        while not request.done() and not generator.stats().num_running:
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def disturbed(
    generator: TextGenerator, watch: Watch, row: frozenset[str], body: dict[str, Any]
) -> Answer:
    """The row's answer in the company that the row names."""
    async with client_of(generator) as client:
        if "prefix" in row:
            warm = {key: value for key, value in body.items() if key != "min_tokens"}
            await asked(client, {**warm, "max_tokens": 1}, is_stream=False)
        if "cancel" in row:
            await leave(generator, row)
        company = []
        if "priority" in row:
            watch.hold_until(NUM_OTHERS + 1)
            other = {"model": "tiny", "prompt": "x", "max_tokens": 30, "ignore_eos": True}
            company = [
                asyncio.create_task(asked(client, other, is_stream=True)) for _ in range(NUM_OTHERS)
            ]
            while watch.num_awaited > 1:
                await asyncio.sleep(0.001)
        answer = await asked(client, body, is_stream="stream" in row)
        await asyncio.gather(*company)
    return answer


async def alone(generator: TextGenerator, body: dict[str, Any], *, is_stream: bool) -> Answer:
    """An answer that nothing disturbs, after which nothing is left."""
    async with client_of(generator) as client:
        answer = await asked(client, body, is_stream=is_stream)
    async with asyncio.timeout(20):
        while any(held(generator)):
            await asyncio.sleep(0.001)
    return answer


def held(generator: TextGenerator) -> tuple[int, int, int]:
    stats = generator.stats()
    return stats.num_running, stats.num_waiting, stats.num_streams


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "+".join(sorted(row)) or "nothing")
def test_what_each_promises_holds_in_all_company(
    generator: TextGenerator, watch: Watch, row: frozenset[str]
) -> None:
    name = "+".join(sorted(row))
    watch.preempts = "preemption" in row
    answer = asyncio.run(disturbed(generator, watch, row, body_of(row, f"own {name}")))
    watch.preempts = False
    body = body_of(row, f"cold {name}", seed=answer.seed)
    cold = asyncio.run(alone(generator, body, is_stream="stream" not in row))
    assert answer.choices == cold.choices
    check_usage(row, answer, cold)
    for choice in answer.choices:
        check_choice(row, choice)
    if "preemption" in row and answer.usage["completion_tokens"] > 3 * len(answer.choices):
        assert answer.id in watch.preempted
    if "seed" in row:
        assert answer.seed == 11
    if "priority" in row:  # it came last, and waited for nobody but who ran
        assert answer.id in watch.begun[watch.num_before :][: MAX_NUM_SEQS + 1]


def check_usage(row: frozenset[str], answer: Answer, cold: Answer) -> None:
    """Tokens are counted once, and what was found computed is said."""
    usage, details = answer.usage, answer.usage["prompt_tokens_details"]
    assert cold.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert {**usage, "prompt_tokens_details": 0} == {**cold.usage, "prompt_tokens_details": 0}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    is_found = "prefix" in row and not row >= {"echo", "logprobs"}
    assert (details["cached_tokens"] > 0) == is_found
    assert details["cached_tokens"] < usage["prompt_tokens"]
    num_shown = sum(len(one["token_ids"]) for one in answer.choices)
    if "echo" not in row:  # what a stop string cut off is counted, not shown
        assert usage["completion_tokens"] >= num_shown
        assert "stop" in row or usage["completion_tokens"] == num_shown
    assert usage["completion_tokens"] <= MAX_TOKENS * len(answer.choices)
    assert len(answer.choices) == (3 if "n" in row else 1)
    if "budget" in row:
        most = BUDGET * len(answer.choices)
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= most


def check_choice(row: frozenset[str], one: dict[str, Any]) -> None:
    """What each feature of a row promises of a choice."""
    finish, num_tokens = one["finish_reason"], len(one["token_ids"])
    text = one["text"].removeprefix(PROMPT) if "echo" in row else one["text"]
    assert one["text"].startswith(PROMPT) == ("echo" in row)
    if "echo" not in row and "stop" not in row:
        assert (finish == "length") <= (num_tokens == MAX_TOKENS)
        assert num_tokens == MAX_TOKENS or finish in {"stop", "tool_calls"}
    if "stop" in row:
        assert not any(stop in text for stop in STOPS)
    if "min_tokens" in row and not row & {"stop", "grammar", "tools", "echo"}:
        assert num_tokens >= MIN_TOKENS
    if "penalties" in row and not row & {"grammar", "tools", "budget", "reasoning"}:
        assert len(set(one["token_ids"])) == num_tokens
    check_reasoning(row, one)
    check_form(row, text, one)
    check_logprobs(row, text, one)


def check_reasoning(row: frozenset[str], one: dict[str, Any]) -> None:
    """Signs are in no field, and a budget ends what it is for."""
    assert "<think>" not in one["reasoning"] + one["text"]
    assert "</think>" not in one["reasoning"]
    assert (one["reasoning_finish"] == "budget") <= ("budget" in row)
    if row >= {"budget", "reasoning"}:  # begun by the template, it ends before the answer does
        assert one["reasoning_finish"] in {"budget", "natural"}


def check_form(row: frozenset[str], text: str, one: dict[str, Any]) -> None:
    """A whole answer is of its form, and a finished call is whole."""
    finish = one["finish_reason"]
    assert (finish == "tool_calls") == (bool(one["calls"]) and finish != "length")
    assert bool(one["calls"]) <= ("tools" in row)
    if finish == "tool_calls":
        for call in one["calls"]:
            assert call["name"] == "add"
            assert isinstance(json.loads(call["arguments"]), dict)
            assert "grammar" in row or json.loads(call["arguments"])["a"] in range(10)
    if row >= {"tools"} and not row & {"grammar", "stop"}:
        assert finish in {"tool_calls", "length"}
    if "grammar" in row and finish == "stop" and "stop" not in row:
        assert 0 <= json.loads(text)["age"] <= 99


def check_logprobs(row: frozenset[str], text: str, one: dict[str, Any]) -> None:
    """As many as there are tokens, and of the text that they spell."""
    logprobs = one["logprobs"]
    if "logprobs" not in row:
        assert logprobs == {}
    elif "echo" in row:
        values = logprobs["token_logprobs"]
        assert values[0] is None
        assert all(value <= 0 for value in values[1:])
        assert {len(values)} == {len(of) for of in logprobs.values()}
        offsets = logprobs["text_offset"]
        assert offsets == sorted(offsets)
        assert offsets[-1] <= len(one["text"])
    else:
        entries = logprobs["content"]
        assert len(entries) == len(one["token_ids"])
        assert all(entry["logprob"] <= 0 for entry in entries)
        if not row & {"stop", "tools", "reasoning", "budget", "grammar"}:
            spelt = b"".join(bytes(entry["bytes"]) for entry in entries)
            assert spelt.decode(errors="replace") == text
