"""The words that every room shares: what is asked and what is answered.

Not here: how a token is chosen (``sampling_params``), why a request is not served (``refusal``),
anything with arrays, text processing, HTTP or policy. Everything is a frozen value or a
protocol, and importing this module costs nothing.

Always true: a ``Request`` is what was asked and never changes; a ``Delta`` is complete in itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

from insitu.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

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
    """Why a choice ended: an end id or stop string, a limit on its length, or complete calls."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class ReasoningFinish(StrEnum):
    """Why a choice's reasoning ended: by itself, or because its budget was spent."""

    NATURAL = "natural"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call an assistant message made: its id, the tool's name, arguments as JSON text."""

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


GuideKind = Literal["json_schema", "json_object", "regex", "choice", "lark", "gbnf"]


@dataclass(frozen=True, slots=True)
class Guide:
    """What the content of an answer must match, as a whole.

    ``value`` is a JSON schema, a regular expression, a tuple of choices, or a grammar's text;
    ``param`` the path of the field that it was given in.
    """

    kind: GuideKind
    value: Any = None
    param: str = "response_format"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether an answer may, must not or must call tools; ``name`` is the only one it may call.

    Without ``is_parallel`` it makes at most one call.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much an answer may think before it begins: an effort, and a number of tokens.

    None leaves it to the server and the model. After ``max_tokens`` of reasoning it is ended, and
    the answer begins.
    """

    effort: Literal["none", "minimal", "low", "medium", "high"] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """That a prompt's vector is wanted, not what follows the prompt.

    Of the vector the first ``dimensions`` numbers (None: all), of length 1 together. A prompt of
    more than ``max_tokens`` (None: the context's length) is refused, or its first tokens are taken
    where it ``is_cut``.
    """

    dimensions: int | None = None
    max_tokens: int | None = None
    is_cut: bool = False


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
    tool_choice: ToolChoice = ToolChoice()
    guide: Guide | None = None
    reasoning: Reasoning = Reasoning()
    add_generation_prompt: bool = True
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_special_tokens: bool = True
    parse_special: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    timeout_s: float | None = None
    cache_salt: str | None = None
    priority: int = 0
    embedding: Embedding | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request turned into ids and ready to run; ``max_tokens`` and ``seed`` are resolved.

    To embed a prompt takes no token beside its own: ``max_tokens`` is 0 then.

    ``prepare_s`` is the part of the request's ``timeout_s`` that is already spent. ``is_thinking``:
    the prompt ends where the model is to reason, for at most ``max_reasoning_tokens``.
    ``constraint`` narrows what may be sampled.
    """

    request: Request
    prompt_ids: tuple[int, ...]
    max_tokens: int
    seed: int
    prompt_text: str | None = None
    warnings: tuple[str, ...] = ()
    prepare_s: float = 0.0
    is_thinking: bool = False
    max_reasoning_tokens: int | None = None
    constraint: TokenConstraint | None = None

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

    ``cached_tokens`` of the prompt were found computed; ``reasoning_tokens`` of the completion
    were thought before the answer began.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class ToolCallPiece:
    """What call ``index`` of a choice gained: its first piece has id and name, all add arguments.

    The joined ``arguments`` are JSON text as the model wrote it, whole unless the choice was cut.
    """

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What one choice gained. Text and token ids run in step: the ids' text is never held back.

    An answer is reasoning, then content and tool calls; the signs between them are in none of them.
    The last delta of a choice carries ``finish_reason`` and ``usage``, and ``reasoning_finish``
    where it reasoned; ``stop`` is the stop string that ended it. The first of choice 0 carries
    ``prompt_logprobs`` where they were asked for, from the prompt's second token on. The only delta
    of a prompt that is embedded carries its ``vector``: float32, the lowest byte first.
    """

    index: int = 0
    token_ids: tuple[int, ...] = ()
    content: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallPiece, ...] = ()
    reasoning_finish: ReasoningFinish | None = None
    stop: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    vector: bytes | None = None


def joined_calls(deltas: Iterable[Delta]) -> tuple[ToolCall, ...]:
    """The calls that one choice's deltas hold in pieces."""
    calls: dict[int, ToolCall] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        begun = calls.get(piece.index, ToolCall(piece.id or "", piece.name or "", ""))
        arguments = begun.arguments + piece.arguments
        calls[piece.index] = ToolCall(begun.id, begun.name, arguments)
    return tuple(calls.values())


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant's name (never a key), or None where no keys are in use.

    ``is_admin``: they may ask what the server says of itself and of everybody.
    """

    tenant: str | None = None
    is_admin: bool = False


class Ticket(Protocol):
    """An admitted request's place; whoever asked for it closes it, once."""

    def reserve(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Set aside what may be used, or raise ``Refusal``."""
        ...

    def close(self, usage: Usage) -> None:
        """Settle with what was used; later calls change nothing."""
        ...

    def headers(self) -> Mapping[str, str]:
        """What an answer says of what is left."""
        ...


class Gate(Protocol):
    """Decides which requests may run."""

    def admit(self, request: Request, caller: Caller) -> Ticket:
        """A ticket, by what is known before the prompt's tokens are; or raise ``Refusal``."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What is served: names, the file's digest, and every setting that can change a bit.

    ``sampling_defaults``: what the model's file gives for the fields a request leaves out.
    ``has_tools`` and ``has_reasoning``: its chat template's form of either is known here;
    ``has_guides``: answers can be made to match a schema or a grammar. A prompt's vector has
    ``embedding_size`` numbers.
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
    has_tools: bool = False
    has_reasoning: bool = False
    has_guides: bool = False
    embedding_size: int = 0


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Ids of a prompt and, for a chat, the text its template rendered.

    ``is_thinking``: the prompt ends where the model is to reason; False: where it is not to; None:
    where it may.
    """

    token_ids: tuple[int, ...]
    prompt_text: str | None = None
    warnings: tuple[str, ...] = ()
    is_thinking: bool | None = None


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
