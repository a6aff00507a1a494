"""What a request asks of its answer beside text: tools, reasoning; refused where it cannot be.

Not here: reading the answer (``speaking``), ids (``preparing``). Always true: what is not refused
here is honoured; a limit is never lowered in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from insitu.codec import reasoning, tools
from insitu.codec.answer_text import Speech
from insitu.codec.thinking import ThinkingConstraint
from insitu.llm.grammars import Grammars
from insitu.llm.speaking import functions_of, speech_of
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.codec.chat import ChatTemplate
    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Request, TokenConstraint

# Tokens of reasoning that an effort stands for, where nothing else says how many; high: no limit.
EFFORT_TOKENS = {"none": 0, "minimal": 256, "low": 1024, "medium": 8192}


@dataclass(frozen=True, slots=True)
class Answering:
    """How a model's answers are read, and how much they may reason, as a person may set it.

    A parser is ``auto`` (by the chat template), ``none``, or the name of one. What stands before a
    closing sign that nothing opened is ``content`` or ``reasoning``. A request that does
    not say gets ``default_reasoning_tokens``; none may ask for more than ``max_reasoning_tokens``.
    """

    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    unopened_reasoning: str = "content"
    default_reasoning_tokens: int | None = None
    max_reasoning_tokens: int | None = None


DEFAULT_ANSWERING = Answering()


def guiding_of(
    tokenizer: Tokenizer, template: ChatTemplate, num_ids: int, answering: Answering
) -> Guiding:
    """What guides the answers of a model."""
    signs, written = reasoning.signs_of(template.source), tools.format_of(template.source)
    if answering.reasoning_parser != "auto":
        signs = reasoning.signs_named(answering.reasoning_parser)
    if answering.tool_parser != "auto":
        written = tools.format_named(answering.tool_parser)
    if signs is not None and answering.unopened_reasoning == "reasoning":
        signs = replace(signs, is_awaited=True)
    speech = speech_of(tokenizer, signs, written)
    return Guiding(
        speech,
        Grammars(tokenizer, num_ids, speech, template.source),
        answering.default_reasoning_tokens,
        answering.max_reasoning_tokens,
    )


@dataclass(frozen=True, slots=True)
class Guiding:
    """Knows how the model speaks, and the server's own limits on reasoning."""

    speech: Speech = field(default_factory=Speech)
    grammars: Grammars | None = None
    default_reasoning_tokens: int | None = None
    most_reasoning_tokens: int | None = None

    def require(self, request: Request) -> None:
        """Refuse what this model cannot do."""
        self._require_tools(request)
        _require_end(request)
        effort, most = request.reasoning.effort, self.most_reasoning_tokens
        if effort not in {None, "none"} and self.speech.signs is None:
            message = "This model does not reason: its chat template has no signs of it."
            raise Refusal(message, param="reasoning_effort", code="unsupported_parameter")
        asked = request.reasoning.max_tokens
        if asked is not None and most is not None and asked > most:
            message = f"max_reasoning_tokens must be at most {most}, which is this server's limit."
            raise Refusal(message, param="max_reasoning_tokens", code="invalid_value")

    def _require_tools(self, request: Request) -> None:
        choice = request.tool_choice
        names = [name for name, _ in functions_of(request)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f"Two tools are called {twice[:80]!r}."
            raise Refusal(message, param="tools", code="invalid_value")
        if choice.mode == "required" and not names:
            message = "A tool call is required, but there are no tools."
            raise Refusal(message, param="tool_choice", code="invalid_value")
        if choice.name is not None and choice.name not in names:
            message = f"tool_choice names {choice.name[:80]!r}, which is none of the tools."
            raise Refusal(message, param="tool_choice", code="invalid_value")
        if names and choice.mode != "none" and self.speech.format is None:
            message = (
                "This model's chat template has no format for tool calls that is known here; "
                "--tool-parser chooses one."
            )
            raise Refusal(message, param="tools", code="unsupported_parameter")

    def shown_tools(self, request: Request) -> tuple[Mapping[str, Any], ...]:
        """The tools that the template is to show."""
        return () if request.tool_choice.mode == "none" else request.tools

    def template_kwargs(self, request: Request, variables: frozenset[str]) -> Mapping[str, Any]:
        """The caller's variables, and what an effort means to a template that reads it."""
        kwargs, effort = dict(request.template_kwargs), request.reasoning.effort
        if effort is not None and "reasoning_effort" in variables and effort != "none":
            kwargs.setdefault("reasoning_effort", effort)
        if effort == "none" and "enable_thinking" in variables:
            kwargs.setdefault("enable_thinking", False)
        return kwargs

    def is_thinking(self, pieces: Sequence[tuple[str, bool]]) -> bool | None:
        """Whether a rendered prompt ends where the model is to reason, is not to, or may."""
        signs = self.speech.signs
        if signs is None or reasoning.is_closed(signs, pieces):
            return False
        return True if reasoning.is_open(signs, pieces) else None

    def constraint(self, request: Request, *, is_thinking: bool | None) -> TokenConstraint | None:
        """What narrows the tokens of an answer; None: nothing."""
        if self.grammars is None:
            return None
        inner = self.grammars.of(request)
        words, most = self.grammars.words, self.max_reasoning_tokens(request)
        may_think = request.messages is not None and is_thinking is not False
        if words is None or not may_think or (inner is None and most is None):
            return inner
        return ThinkingConstraint.begin(
            words, is_thinking=bool(is_thinking), max_tokens=most, inner=inner
        )

    def max_reasoning_tokens(self, request: Request) -> int | None:
        """How many tokens an answer may reason; None: as many as it likes."""
        if self.speech.signs is None or request.messages is None:
            return None
        asked = request.reasoning
        given = asked.max_tokens
        if given is None and asked.effort is not None:
            given = EFFORT_TOKENS.get(asked.effort)
        elif given is None:
            given = self.default_reasoning_tokens
        limits = [one for one in (given, self.most_reasoning_tokens) if one is not None]
        return min(limits, default=None)


def _require_end(request: Request) -> None:
    """What an answer must match also says where it ends."""
    if not request.sampling.ignore_eos:
        return
    if request.guide is not None or request.tool_choice.mode == "required":
        where = "tool_choice" if request.guide is None else request.guide.param
        message = f"ignore_eos cannot be used with {where}: an answer that matches has to end."
        raise Refusal(message, param="ignore_eos", code="invalid_value")
