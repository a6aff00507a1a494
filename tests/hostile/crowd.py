"""Clients of one server, all at once: most behave, some leave, some send rubbish, some do not read.

They speak HTTP over bare sockets, so that they can leave between any two bytes. Not here: the
server, or what must be true afterwards.

Always true: whatever a client that behaves sees and should not is in ``faults``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NUM_CLIENTS = 64
SHARES = {"leaves": 0.30, "rubbish": 0.10, "holds": 0.05}  # the others behave
ANSWER_TIMEOUT_S = 240
MAX_PROMPT_TOKENS = 300
TEXT = "/v1/completions"
RUBBISH: tuple[bytes, ...] = (
    b"",
    b"{",
    b"[]",
    b'{"model": "default"}',
    b'{"model": "default", "prompt": [1, true]}',
    b'{"model": "default", "prompt": [999999999]}',
    b'{"model": "default", "prompt": "x", "max_tokens": -1}',
    b'{"model": "default", "prompt": "x", "max_tokens": 1000000}',
    b'{"model": "default", "prompt": "x", "temperature": NaN}',
    b'{"model": "default", "prompt": "x", "no_such_field": 1}',
    b'{"model": "default", "prompt": "\\ud800"}',
    b'{"model": "nobody", "prompt": "x"}',
    b'{"prompt": "' + b"a" * 200_000 + b'", "model": "default"}',
    b"[" * 100_000,
    b"\xff\xfe\x00" * 1000,
)


@dataclass
class Crowd:
    """Keeps ``NUM_CLIENTS`` clients asking until a time is over."""

    host: str
    port: int
    golden: list[tuple[dict[str, Any], dict[str, Any]]]  # body, and the choice it must give
    seed: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def run(self, duration_s: float) -> None:
        """Ask; what still runs when the time is over is waited for."""
        until_s = time.monotonic() + duration_s
        clients = (self._client(index, until_s) for index in range(NUM_CLIENTS))
        await asyncio.gather(*clients)

    async def _client(self, index: int, until_s: float) -> None:
        chance = random.Random(self.seed * NUM_CLIENTS + index)  # noqa: S311
        while time.monotonic() < until_s:
            role, drawn = "behaves", chance.random()
            for name, share in SHARES.items():
                if drawn < share:
                    role = name
                    break
                drawn -= share
            act: Callable[[random.Random], Awaitable[None]] = getattr(self, f"_{role}")
            self.seen[role] += 1
            try:
                await asyncio.wait_for(act(chance), ANSWER_TIMEOUT_S)
            except (OSError, TimeoutError, AssertionError, EOFError) as error:
                self.faults.append(f"client {index}, {role}: {type(error).__name__}: {error}")

    async def _behaves(self, chance: random.Random) -> None:
        body, expected = self._asked(chance)
        status, head, payload = await self._exchange(json.dumps(body).encode())
        self.seen[f"behaves: {status}"] += 1
        if status == 429:
            retry_after_s = int(head["retry-after"])
            assert retry_after_s > 0
            await asyncio.sleep(chance.uniform(0, min(2, retry_after_s)))
            return
        text = payload.decode()
        assert status == 200, (status, text)
        assert text.endswith("\n\ndata: [DONE]\n\n"), text[-300:]
        chunks = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
        parts = [choice for chunk in chunks for choice in chunk["choices"]]
        for index in range(body.get("n", 1)):
            told = _joined([one for one in parts if one["index"] == index])
            assert told["finish_reason"] in {"stop", "length"}, told
            if expected is not None:
                assert told == _joined([expected]), f"not the golden row: {told}"

    def _asked(self, chance: random.Random) -> tuple[dict[str, Any], dict[str, Any] | None]:
        if chance.random() < 0.3:
            body, expected = chance.choice(self.golden)
            return {**body, "stream": True}, expected
        body = self._any_body(chance)
        if chance.random() < 0.2:
            body["n"] = 2
        if chance.random() < 0.2:
            body["stop"] = ["e", "a"]
        return body, None

    def _any_body(self, chance: random.Random) -> dict[str, Any]:
        opening = chance.randrange(4)  # some prompts begin alike
        num_tokens = chance.randrange(1, MAX_PROMPT_TOKENS)
        shared = [1000 + opening + i for i in range(num_tokens // 2)]
        own = [chance.randrange(100, 40_000) for _ in range(num_tokens - len(shared))]
        return {
            "model": "default",
            "prompt": shared + own,
            "max_tokens": chance.randrange(1, 40),
            "temperature": chance.choice((0, 0.7, 1.3)),
            "logprobs": chance.choice((None, 0, 5)),
            "priority": chance.choice((-1, 0, 0, 1)),
            "return_token_ids": True,
            "stream": True,
        }

    async def _leaves(self, chance: random.Random) -> None:
        """Go away at any moment: within the head, within the body, before or within the answer."""
        request = _request(json.dumps(self._any_body(chance)).encode(), self.host)
        moment = chance.random()
        with contextlib.suppress(ConnectionError):
            reader, writer = await self._connect()
            try:
                writer.write(request[: chance.randrange(len(request))] if moment < 0.2 else request)
                await writer.drain()
                until_s = time.monotonic() + chance.expovariate(1.0)
                while moment > 0.3 and time.monotonic() < until_s:
                    left_s = until_s - time.monotonic()
                    with contextlib.suppress(TimeoutError):
                        if not await asyncio.wait_for(reader.read(200), max(0.0, left_s)):
                            break
            finally:
                await _close(writer, is_rude=chance.random() < 0.5)

    async def _rubbish(self, chance: random.Random) -> None:
        status, _, payload = await self._exchange(chance.choice(RUBBISH))
        self.seen[f"rubbish: {status}"] += 1
        assert 400 <= status < 500, (status, payload[:300])
        assert set(json.loads(payload)["error"]) == {"message", "type", "param", "code"}

    async def _holds(self, chance: random.Random) -> None:
        """Ask for much, and read nothing."""
        body = {**self._any_body(chance), "max_tokens": 200, "logprobs": 20, "ignore_eos": True}
        with contextlib.suppress(ConnectionError):
            _, writer = await self._connect(limit=1)
            try:
                writer.write(_request(json.dumps(body).encode(), self.host))
                await writer.drain()
                await asyncio.sleep(chance.uniform(2, 20))
            finally:
                await _close(writer, is_rude=True)

    async def _connect(
        self, limit: int = 2**20
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.host, self.port, limit=limit)

    async def _exchange(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """One request on a connection of its own: status, headers, body."""
        reader, writer = await self._connect()
        try:
            writer.write(_request(body, self.host))
            await writer.drain()
            answer = await reader.read(-1)
        finally:
            await _close(writer, is_rude=False)
        head, _, payload = answer.partition(b"\r\n\r\n")
        assert head, "no answer"
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if headers.get("transfer-encoding") == "chunked":
            payload = _unchunked(payload)
        return int(first.split()[1]), headers, payload


def _request(body: bytes, host: str) -> bytes:
    head = (
        f"POST {TEXT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def _unchunked(payload: bytes) -> bytes:
    parts: list[bytes] = []
    rest = payload
    while True:
        size, _, rest = rest.partition(b"\r\n")
        assert size, "the answer breaks off"
        length = int(size, 16)
        if not length:
            return b"".join(parts)
        assert len(rest) >= length + 2, "the answer breaks off"
        parts.append(rest[:length])
        rest = rest[length + 2 :]


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """A choice out of its parts, in what must be equal whole and streamed."""
    names = ("token_ids", "token_logprobs", "top_token_ids", "top_token_logprobs")
    told = [part["logprobs"] for part in parts if part["logprobs"] is not None]
    return {
        "text": "".join(part["text"] for part in parts),
        "ids": [one for part in parts for one in part["token_ids"]],
        "finish_reason": parts[-1]["finish_reason"] if parts else None,
        **{name: [value for one in told for value in one[name]] for name in names},
    }


async def _close(writer: asyncio.StreamWriter, *, is_rude: bool) -> None:
    if is_rude:
        writer.transport.abort()
        return
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
