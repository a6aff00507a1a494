"""The words that every room shares: what is asked, what is answered, who may refuse.

Not here: anything with arrays, text processing, HTTP or policy. Everything is a frozen value or a
protocol, and importing this module costs nothing.

Always true: a ``Request`` is what was asked and never changes; a ``Delta`` is complete in itself.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from insitu.measures import EngineStats

# Names that a request's ``template_kwargs`` may not take: they stand for what the request says
# elsewhere, for what the model's file says, or for the template language's own.
RESERVED_TEMPLATE_NAMES = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "tokenize", "template", "chat_template", "bos_token", "eos_token", "unk_token", "pad_token",
        "loop", "range", "namespace", "dict", "raise_exception", "strftime_now",
    }
)  # fmt: skip
TEMPLATE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def is_template_name(name: str) -> bool:
    """Whether a caller may set a variable of that name for the chat template."""
    return TEMPLATE_NAME.fullmatch(name) is not None and name not in RESERVED_TEMPLATE_NAMES


class FinishReason(StrEnum):
    """Why a choice ended: an end id or stop string, or a limit on its length."""

    STOP = "stop"
    LENGTH = "length"


class Refusal(Exception):
    """A request that will not be served, with the reason a caller can act on.

    ``status`` is the HTTP status it maps to, ``kind`` the error type of OpenAI's API, ``param`` the
    path of the field at fault, ``code`` a stable machine-readable word.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class RequestFailed(Exception):
    """A request that was admitted and then failed inside; the server and other requests live on.

    ``code`` and ``status`` are as in ``Refusal``.
    """

    def __init__(self, message: str, *, code: str = "request_failed", status: int = 500) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def request_timed_out(timeout_s: float) -> RequestFailed:
    """The failure of a request that took longer than it may."""
    message = f"The request took longer than {timeout_s:g} s."
    return RequestFailed(message, code="request_timeout", status=504)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call an assistant message made earlier: its id, the tool's name, arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. Content parts are already joined (by nothing); None is an absent text."""

    role: str
    content: str | None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    ``max_tokens`` None: to the end of the context. ``temperature`` 0 is greedy; ``top_k`` 0,
    ``top_p`` 1 and ``min_p`` 0 are off; None takes the model's default for it, else ``DEFAULTS``.
    ``seed`` None draws one, which the answer reports; each of ``n`` choices has noise of its own.
    ``logprobs`` None gives none; a number asks for that many alternatives beside the sampled token.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    DEFAULTS = MappingProxyType({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
    MAX_LOGPROBS = 20
    MAX_N = 128
    MAX_STOP = 16
    MAX_STOP_CHARS = 1024

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, naming the field."""
        stop = (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        ids = _listed("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        self._require_types()
        _require("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        _require(
            "temperature",
            self.temperature is None or 0 <= self.temperature <= sys.float_info.max,
            "a finite number >= 0",
        )
        _require("top_k", self.top_k is None or self.top_k >= 0, "at least 1, or 0 for no limit")
        _require("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1")
        _require("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1")
        _require("seed", self.seed is None or 0 <= self.seed < 2**64, "from 0 to 2**64 - 1")
        _require(
            "stop",
            len(self.stop) <= self.MAX_STOP
            and all(0 < len(text) <= self.MAX_STOP_CHARS for text in self.stop),
            f"up to {self.MAX_STOP} strings of 1 to {self.MAX_STOP_CHARS} characters",
        )
        _require(
            "logprobs",
            self.logprobs is None or 0 <= self.logprobs <= self.MAX_LOGPROBS,
            f"from 0 to {self.MAX_LOGPROBS}",
        )
        _require("n", 1 <= self.n <= self.MAX_N, f"from 1 to {self.MAX_N}")

    def _require_types(self) -> None:
        """Nothing is taken for a number, a text or a truth that is not one."""
        for name in ("max_tokens", "top_k", "seed", "logprobs"):
            value = getattr(self, name)
            _require(name, value is None or _is_whole(value), "a whole number")
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            _require(name, value is None or is_number, "a number")
        _require("stop", all(isinstance(one, str) for one in self.stop), "a string or several")
        _require("stop_token_ids", all(map(_is_whole, self.stop_token_ids)), "token ids")
        _require("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")

    def over(self, defaults: Mapping[str, float]) -> Mapping[str, float]:
        """The names of ``DEFAULTS``, each with a value: asked for, else given, else our own."""
        asked = {name: getattr(self, name) for name in self.DEFAULTS}
        given = {name: value for name, value in asked.items() if value is not None}
        return {**self.DEFAULTS, **defaults, **given}


def _listed(param: str, values: object) -> tuple[Any, ...]:
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | bytearray)
    _require(param, is_list, "a list")
    assert isinstance(values, Iterable)
    return tuple(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require(param: str, holds: bool, wanted: str) -> None:
    if not holds:
        raise Refusal(f"{param} must be {wanted}.", param=param, code="invalid_value")


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asked for. Exactly one of ``messages`` and ``prompt`` is given.

    ``prompt`` is text, or token ids (any of the vocabulary). ``parse_special`` lets a prompt's text
    spell control tokens; in a chat only the template's own characters ever can. Computed prompts
    are shared within a tenant, and with ``cache_salt`` only where it is the same. A lower
    ``priority`` runs earlier. What takes longer than ``timeout_s`` ends with ``request_timed_out``.
    """

    request_id: str
    model: str
    messages: tuple[Message, ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = True
    parse_special: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout_s: float | None = None
    cache_salt: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request turned into ids and ready to run; ``max_tokens`` and ``seed`` are resolved.

    ``prepare_s`` is the part of the request's ``timeout_s`` that is already spent.
    """

    request: Request
    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    prompt_text: str | None = None
    warnings: tuple[str, ...] = ()
    prepare_s: float = 0.0

    @property
    def num_prompt_tokens(self) -> int:
        """How many tokens the prompt has, special tokens included."""
        return len(self.prompt_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token with its log-probability (nats, of the model before any processor).

    ``bytes`` are the token's true bytes, ``text`` what it shows alone (U+FFFD where they are not
    UTF-8). ``top`` are the most likely alternatives, most likely first.
    """

    token_id: int
    logprob: float
    text: str
    bytes: bytes
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens to be counted (and billed) for a request, or one choice of it.

    ``cached_tokens`` of the prompt were found computed.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained. Text and token ids run in step: the ids' text is never held back.

    The last delta of a choice carries ``finish_reason`` and ``usage``.
    """

    index: int = 0
    token_ids: tuple[int, ...] = ()
    content: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant's name (never a key), or None where no keys are in use."""

    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served: names, the file's digest, and every setting that can change a bit.

    ``sampling_defaults``: what the model's file gives for the fields a request leaves out.
    """

    name: str
    aliases: tuple[str, ...]
    architecture: str
    digest: str
    size_bytes: int
    created: int
    max_model_len: int
    vocab_size: int
    numeric_settings: Mapping[str, str]
    has_chat_template: bool
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Ids of a prompt and, for a chat, the text its template rendered."""

    token_ids: tuple[int, ...]
    prompt_text: str | None = None
    warnings: tuple[str, ...] = ()


class Generator(Protocol):
    """What a server is given: text in, deltas out."""

    async def prepare(self, request: Request) -> Prepared:
        """Turn a request into ids, or raise ``Refusal``."""
        ...

    def stream(self, prepared: Prepared, caller: Caller) -> AsyncIterator[Delta]:
        """Yield deltas until every choice finished; closing the iterator aborts the request."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request now; unknown ids are ignored."""
        ...

    async def tokenize(self, request: Request) -> Tokenized:
        """Ids of a prompt or of rendered messages, without running anything."""
        ...

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        """Text of ids, control tokens shown; an id outside the vocabulary is a ``Refusal``."""
        ...

    def describe(self) -> ModelCard:
        """What is served."""
        ...

    def stats(self) -> EngineStats:
        """Counters as they stand."""
        ...


class TokenConstraint(Protocol):
    """Something that narrows which token may come next (grammar, budget, banned words)."""

    def fill_mask(self, out: memoryview) -> bool:
        """Set one bit per allowed token; return False if every token is allowed."""
        ...

    def advance(self, token_id: int) -> None:
        """Take in one accepted token."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Undo the last accepted tokens."""
        ...

    def fork(self) -> TokenConstraint:
        """An independent copy in the same state."""
        ...

    def forced(self) -> Sequence[int]:
        """Ids that must come next whatever the model says, in order; empty if none."""
        ...
