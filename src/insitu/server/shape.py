"""What chat and text completions share in the form of their answers.

Not here: running anything. Always true: a stream gives each choice exactly one chunk with a finish
reason, and ``seed`` and ``warnings`` stand in a stream's first chunk and in a whole answer.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Protocol

from insitu.server.errors import error_body

if TYPE_CHECKING:
    from collections.abc import Iterable

    from insitu.refusal import Refusal
    from insitu.server.dialects import Dialect
    from insitu.types import Delta, ModelCard, Prepared, Usage


class Shape(Protocol):
    """How one endpoint words its answers."""

    @property
    def dialect(self) -> Dialect:
        """How a stream is framed."""
        ...

    def opening(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first delta."""
        ...

    def chunks(self, delta: Delta) -> Iterable[dict[str, Any]]:
        """Chunks for one delta."""
        ...

    def closing(self, usage: Usage) -> Iterable[dict[str, Any]]:
        """Chunks after the last delta."""
        ...

    def failing(self, refusal: Refusal) -> Iterable[dict[str, Any]]:
        """Chunks that end a stream which failed."""
        ...

    def whole(self, deltas: list[Delta], usage: Usage) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        ...


@cache
def version() -> str:
    """The installed version, part of every fingerprint."""
    try:
        return metadata.version("insitu")
    except metadata.PackageNotFoundError:
        return "0"


@cache
def _fingerprint(digest: str, settings: tuple[tuple[str, str], ...]) -> str:
    text = repr((version(), digest, settings))
    return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(card: ModelCard) -> str:
    """A short name of all that can change a bit of an answer beside the request."""
    return _fingerprint(card.digest, tuple(sorted(card.numeric_settings.items())))


@dataclass(frozen=True, slots=True)
class Head:
    """The fields every answer of one request begins with."""

    id: str
    model: str
    system_fingerprint: str
    seed: int
    warnings: tuple[str, ...]
    num_choices: int
    has_token_ids: bool
    has_usage: bool
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """Fields of every chunk and answer."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }

    def chunk(self, kind: str, choice: dict[str, Any]) -> dict[str, Any]:
        """A chunk with one choice; its usage is null where a usage chunk will follow."""
        answer = {**self.fields(kind), "choices": [choice]}
        if self.has_usage:
            answer["usage"] = None
        return answer

    def closing(self, kind: str, usage: Usage) -> Iterable[dict[str, Any]]:
        """The chunk that only counts, where it was asked for."""
        if self.has_usage:
            yield {**self.fields(kind), "choices": [], "usage": usage_fields(usage)}

    @staticmethod
    def failing(refusal: Refusal) -> Iterable[dict[str, Any]]:
        """The one event of a failure."""
        yield error_body(refusal)

    def notes(self) -> dict[str, Any]:
        """What an answer reports beside OpenAI's fields: the seed used, and warnings if any."""
        notes: dict[str, Any] = {"seed": self.seed}
        if self.warnings:
            notes["warnings"] = list(self.warnings)
        return notes


def head_of(card: ModelCard, prepared: Prepared, *, token_ids: bool, usage: bool) -> Head:
    """The head of a prepared request's answer."""
    return Head(
        id=prepared.request.request_id,
        model=card.name,
        system_fingerprint=fingerprint(card),
        seed=prepared.seed,
        warnings=prepared.warnings,
        num_choices=prepared.request.sampling.n,
        has_token_ids=token_ids,
        has_usage=usage,
    )


def by_choice(deltas: list[Delta], num_choices: int) -> list[list[Delta]]:
    """The deltas of each choice, in order."""
    return [[one for one in deltas if one.index == index] for index in range(num_choices)]


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Token counts in OpenAI's words."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
