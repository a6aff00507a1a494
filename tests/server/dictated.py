"""A real engine under the server, whose text is dictated token by token.

The model's chat template shows a message's content and nothing else, so that a prompt ends with the
character it was given: after ``START`` comes the script, after its last token the end.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
from server.asking import BASE, CHAT, chat_scope, events
from tiny_model import END_TOKEN, Vocabulary, write_chain_gguf

from insitu.engine.runner import BatchRunner, Underway
from insitu.llm import inbox
from insitu.llm.build import build
from insitu.server.app import create_app
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    import pytest
    from starlette.applications import Starlette

    from insitu.llm.text_generator import TextGenerator

START = "S"
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_dictated(
    folder: Path,
    script: Sequence[bytes],
    *,
    template: str = PLAIN,
    is_endless: bool = False,
    fails: bool = False,
    **sizes: Any,
) -> Path:
    """A model that says the script, then ends, repeats its last token for ever, or fails."""
    extra = tuple(token for token in script if len(token) > 1)
    words = Vocabulary(extra)
    ids = [words.id_of(START), *map(words.id_of, script)]
    after = dict(pairwise(ids))
    after[ids[-1]] = ids[-1] if is_endless else words.id_of(END_TOKEN)
    path = folder / "dictated.gguf"
    write_chain_gguf(
        path,
        after,
        extra_tokens=extra,
        spoilt=ids[-1:] if fails else (),
        pairs={"tokenizer.chat_template": template},
        **sizes,
    )
    return path


@contextmanager
def dictated(
    folder: Path, script: Sequence[bytes], *, settings: Mapping[str, Any] | None = None, **how: Any
) -> Iterator[TextGenerator]:
    """A generator over ``write_dictated``; ``settings`` are the engine's."""
    path = write_dictated(folder, script, **how)
    generator = build(path, name="tiny", threads=1, **(settings or {}))
    try:
        yield generator
    finally:
        generator.close()


def ask_together(
    generator: TextGenerator, bodies: Sequence[dict[str, Any]], path: str = CHAT
) -> list[httpx.Response]:
    """Bodies posted at once to one app."""

    async def run() -> list[httpx.Response]:
        app = create_app(generator, ServerOptions())
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return await asyncio.gather(*(client.post(path, json=body) for body in bodies))

    return asyncio.run(run())


def slow_steps(monkeypatch: pytest.MonkeyPatch, step_s: float = 0.005) -> None:
    """Let every step take so long, as a real model's do: its clients read as fast as it speaks."""
    finish = BatchRunner.finish

    def slowly(self: BatchRunner, underway: Underway) -> Any:
        time.sleep(step_s)
        return finish(self, underway)

    monkeypatch.setattr(BatchRunner, "finish", slowly)


async def until_idle(generator: TextGenerator, limit_s: float = 30) -> None:
    """Wait until nothing is held and nothing is known of any request."""
    end_s = time.monotonic() + limit_s  # what is not let go of runs for minutes
    while True:
        stats = generator.stats()
        left = (
            stats.num_kv_blocks_used,
            stats.num_sequences,
            stats.num_open,
            stats.num_queued,
            stats.num_streams,
        )
        if not any(left):
            return
        assert time.monotonic() < end_s, left
        await asyncio.sleep(0.005)


class Leaver:
    """A client that reads what it is sent, and goes away when it is told to."""

    def __init__(self, app: Starlette, body: dict[str, Any]) -> None:
        self.said = ""
        self._parts = [
            {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        ]
        self._news, self._gone = asyncio.Event(), asyncio.Event()
        self._task = asyncio.ensure_future(app(chat_scope(), self._receive, self._send))

    async def saw(self, num_tokens: int) -> None:
        """Wait until so many tokens of ``a`` came."""
        while self.said.count('"content":"a"') < num_tokens:
            await self._news.wait()
            self._news.clear()

    async def leave(self) -> None:
        """Go, and wait until the app has noticed."""
        self._gone.set()
        await self._task

    async def read_all(self) -> str:
        """Everything that the app says until it ends the answer."""
        await self._task
        return self.said

    async def _receive(self) -> dict[str, Any]:
        if self._parts:
            return self._parts.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.said += message.get("body", b"").decode()
        self._news.set()


def let_pass(monkeypatch: pytest.MonkeyPatch, passed_s: float) -> None:
    """Let the running event loop's clock be so much later: timers that are due by then run."""
    loop = asyncio.get_running_loop()
    time_of = loop.time
    monkeypatch.setattr(loop, "time", lambda: time_of() + passed_s)


def read_ever_so_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be paused because its reader had no processor for a while."""
    monkeypatch.setattr(inbox, "MAX_UNREAD", 10**9)


def chat(**fields: Any) -> dict[str, Any]:
    """A greedy chat that begins the script."""
    messages = [{"role": "user", "content": START}]
    return {"model": "tiny", "messages": messages, "temperature": 0, **fields}


def whole_and_streamed(generator: TextGenerator, **fields: Any) -> dict[str, Any]:
    """The choice of a chat asked for both ways: both must say the same.

    It holds content, finish_reason, usage and token_ids, and logprobs where they were asked for.
    """
    fields = {"return_token_ids": True, **fields}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    whole, streamed = ask_together(generator, [chat(**fields), chat(**fields, **options)])
    assert whole.status_code == streamed.status_code == 200, whole.text + streamed.text
    for line in streamed.content.split(b"\n\n"):
        if line not in {b"", b"data: [DONE]"}:
            json.loads(line.removeprefix(b"data: ").decode("utf-8"))
    body = whole.json()
    (choice,) = body["choices"]
    chunks = events(streamed)
    said = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert said[0]["delta"]["role"] == "assistant"
    assert "".join(one["delta"].get("content", "") for one in said) == choice["message"]["content"]
    assert [i for one in said for i in one.get("token_ids", [])] == choice["token_ids"]
    entries = [one for part in said if part.get("logprobs") for one in part["logprobs"]["content"]]
    assert entries == (choice["logprobs"] or {}).get("content", [])
    reasons = [one["finish_reason"] for one in said]
    assert reasons == [None] * (len(said) - 1) + [choice["finish_reason"]]
    assert chunks[-1]["usage"] == body["usage"]
    return {
        "content": choice["message"]["content"],
        "finish_reason": choice["finish_reason"],
        "usage": body["usage"],
        "logprobs": entries,
        "token_ids": choice["token_ids"],
    }
