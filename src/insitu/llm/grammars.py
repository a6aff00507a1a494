"""The grammar that a request's answer must match: of its guide, its tools, or both.

Not here: compiling (``codec/grammar``), reasoning before the answer (``guiding``). Always true: a
request that asks for nothing of the kind has none.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from insitu.codec.call_grammar import CallGrammar
from insitu.codec.grammar import (
    GrammarCompiler,
    expression_of,
    grammar_of,
    lark_of,
    require_numbers,
)
from insitu.codec.thinking import ThinkingWords
from insitu.llm.speaking import callable_tools, functions_of
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from insitu.codec.answer_text import Speech
    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Request, TokenConstraint


class Grammars:
    """Knows one model's vocabulary and how it writes calls."""

    def __init__(self, tokenizer: Tokenizer, num_ids: int, speech: Speech, template: str) -> None:
        self._compiler = GrammarCompiler(tokenizer, num_ids)
        self._tokenizer = tokenizer
        self._num_ids = num_ids
        self._speech = speech
        self._template = template

    @cached_property
    def words(self) -> ThinkingWords | None:
        """The model's signs of reasoning, if it has any."""
        signs = self._speech.signs
        return None if signs is None else ThinkingWords(self._tokenizer, signs, self._num_ids)

    @cached_property
    def _calls(self) -> CallGrammar | None:
        written = self._speech.format
        return None if written is None else CallGrammar(written, self._tokenizer, self._template)

    def of(self, request: Request) -> TokenConstraint | None:
        """What an answer must match, in its first state."""
        if request.tools and self._calls is not None:
            rules = self._rules(request, self._calls)
            if rules is not None:
                require_numbers(request.tools, "tools")
                return self._compiler.compile(lark_of(rules), "tools")
        if request.guide is None:
            return None
        return self._compiler.compile(grammar_of(request.guide), request.guide.param)

    def _rules(self, request: Request, calls: CallGrammar) -> list[str] | None:
        """Rules about tool calls; None where there are none to make."""
        choice, guide = request.tool_choice, request.guide
        is_parallel = choice.is_parallel and choice.name is None
        if choice.mode == "none":
            return calls.no_calls() if guide is None and calls.has_openings else None
        if choice.mode == "required":
            if guide is not None:
                message = f"tool_choice wants a call, and {guide.param} an answer that is none."
                raise Refusal(message, param="tool_choice", code="invalid_value")
            written = calls.calls(callable_tools(request), is_parallel=is_parallel)
            return ["start: calls", *written]
        enforced = _enforced(request)
        if guide is not None:
            content = expression_of(guide)
            if content is None:
                message = f"{guide.param} cannot be a grammar where there are tools."
                raise Refusal(message, param=guide.param, code="invalid_value")
            written = calls.calls(enforced, is_parallel=is_parallel)
            return ["start: calls | content", f"content: {content}", *written]
        if not any(function.get("strict") for _, function in functions_of(request)):
            return None
        return calls.among_text(enforced, is_parallel=is_parallel)


def _enforced(request: Request) -> dict[str, Any]:
    """The tools' schemas; of those that are not strict only that arguments are an object."""
    return {
        name: (function.get("parameters") or {}) if function.get("strict") else {}
        for name, function in functions_of(request)
    }
