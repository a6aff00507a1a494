"""A Generator that says what it is told: for the server's tests, without a model.

Text is tokenised a character a token, id = code point. The last user text chooses a behaviour.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from insitu.measures import EngineStats, Histogram
from insitu.refusal import Refusal, RequestFailed
from insitu.types import (
    Caller,
    Delta,
    FinishReason,
    ModelCard,
    Prepared,
    Request,
    Tokenized,
    TokenLogprob,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

CARD = ModelCard(
    name="tiny",
    aliases=("tiny-alias", "default"),
    architecture="llama",
    digest="sha256:00",
    size_bytes=1,
    created=1,
    max_model_len=512,
    vocab_size=0x110000,
    numeric_settings={"kv_cache_dtype": "f16"},
    has_chat_template=True,
    embedding_size=4,
)


def vector_of(ids: Sequence[int], dimensions: int | None = None) -> bytes:
    """What the script makes of ids: 0.6, 0.8, how many there are, and 0.1."""
    return struct.pack("<4f", 0.6, 0.8, len(ids), 0.1)[: 4 * (dimensions or 4)]


def token(text: str, num_top: int = 0) -> TokenLogprob:
    top = tuple(
        TokenLogprob(
            ord(text[0]) + i, -0.5 - i, chr(ord(text[0]) + i), chr(ord(text[0]) + i).encode()
        )
        for i in range(num_top)
    )
    return TokenLogprob(ord(text[0]), -0.5, text, text.encode(), top)


@dataclass
class Scripted:
    """Says ``text``, then ends; ``fail_after`` raises there, ``gap_s`` sleeps between tokens."""

    text: str = "alpha beta"
    gap_s: float = 0.0
    start_s: float = 0.0
    fail_after: int | None = None
    error: Exception = field(default_factory=lambda: RequestFailed("the step failed"))
    finish: FinishReason = FinishReason.STOP
    warnings: tuple[str, ...] = ()
    asked: list[Request] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    num_running: int = 0
    is_alive: bool = True
    is_late: bool = False
    is_lost: bool = False

    async def prepare(self, request: Request) -> Prepared:
        self.asked.append(request)
        if request.model not in {CARD.name, *CARD.aliases}:
            raise Refusal(f"no {request.model}", status=404, param="model", code="model_not_found")
        ids = self._ids(request)
        if any(one >= CARD.vocab_size for one in (*ids, *request.sampling.stop_token_ids)):
            raise Refusal("outside the vocabulary", param="prompt", code="invalid_token_id")
        if request.embedding is not None:
            return Prepared(request, ids, 0, 0, warnings=self.warnings)
        max_tokens = request.sampling.max_tokens or CARD.max_model_len - len(ids)
        if len(ids) + max_tokens > CARD.max_model_len:
            raise Refusal("too long", param="max_tokens", code="context_length_exceeded")
        seed = 7 if request.sampling.seed is None else request.sampling.seed
        return Prepared(request, ids, max_tokens, seed, warnings=self.warnings)

    @staticmethod
    def _ids(request: Request) -> tuple[int, ...]:
        if request.messages is not None:
            text = "".join(f"<{one.role}>{one.content or ''}" for one in request.messages)
            return tuple(map(ord, text))
        if isinstance(request.prompt, str):
            return tuple(map(ord, request.prompt))
        assert request.prompt is not None
        return request.prompt

    async def stream(self, prepared: Prepared, caller: Caller) -> AsyncIterator[Delta]:
        self.callers.append(caller)
        self.num_running += 1
        try:
            await asyncio.sleep(self.start_s)
            if prepared.request.embedding is not None:
                yield self._embedded(prepared)
                return
            for index in range(prepared.request.sampling.n):
                async for delta in self._deltas(prepared):
                    yield replace(delta, index=index)
        finally:
            self.num_running -= 1
            self.closed.append(prepared.request.request_id)

    def _embedded(self, prepared: Prepared) -> Delta:
        ids = prepared.prompt_ids
        if self.fail_after is not None and len(ids) == self.fail_after:
            raise self.error
        assert prepared.request.embedding is not None
        vector = vector_of(ids, prepared.request.embedding.dimensions)
        return Delta(finish_reason=FinishReason.STOP, usage=Usage(len(ids), 0), vector=vector)

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        logprobs = prepared.request.sampling.logprobs
        made = 0
        for char in self.text[: prepared.max_tokens]:
            if made == self.fail_after:
                raise self.error
            if self.gap_s:
                await asyncio.sleep(self.gap_s)
            made += 1
            tokens = () if logprobs is None else (token(char, logprobs),)
            yield Delta(token_ids=(ord(char),), content=char, logprobs=tokens)
        if self.fail_after is not None:
            raise self.error
        is_cut = made == prepared.max_tokens
        yield Delta(
            finish_reason=FinishReason.LENGTH if is_cut else self.finish,
            usage=Usage(len(prepared.prompt_ids), made),
        )

    def abort(self, request_id: str) -> None:
        self.closed.append(request_id)

    async def tokenize(self, request: Request) -> Tokenized:
        await self.prepare(request)
        ids = self._ids(request)
        text = None if request.messages is None else "".join(map(chr, ids))
        return Tokenized(ids, text)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        if any(one >= CARD.vocab_size for one in token_ids):
            raise Refusal("outside the vocabulary", param="tokens", code="invalid_token_id")
        return "".join("?" if 0xD800 <= one < 0xE000 else chr(one) for one in token_ids)

    def describe(self) -> ModelCard:
        return CARD

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_running,
            num_waiting=0,
            num_kv_blocks=10,
            num_kv_blocks_used=1,
            counters={"steps": 3},
            histograms={"step_seconds": Histogram((0.1, 1.0), (1, 2, 0), 0.5)},
            is_alive=self.is_alive,
            step_age_s=400.0 * self.is_late,
            is_late=self.is_late,
            is_lost=self.is_lost,
        )
