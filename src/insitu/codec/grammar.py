"""Grammars as constraints on tokens: compiled from what a request gives, within limits.

Grammars are compiled and matched by ``llguidance``. Not here: grammars of tool calls
(``call_grammar``), when one begins (``thinking``).

Always true: what cannot be compiled in time and size is a ``Refusal`` that names the field and the
reason, before anything runs; a string of a grammar is spelt with ordinary tokens, never with the
model's own signs; an answer may end only where the grammar is satisfied; what other
requests made of the same grammar ends nobody's answer.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal, RequestFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llguidance import LLMatcher, LLTokenizer

    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Guide

MAX_GUIDE_BYTES = 256 * 2**10
MAX_DEPTH = 64
COMPILE_TIMEOUT_S = 5.0
_NUM_WORKERS = 2
# What may be compiled again while others wait for their tokens.
_QUICK_S = 0.2
_MAX_KEPT = 64
# Its reader holds the interpreter.
_MAX_GBNF_CHARS = 32_768
_MAX_REASON_CHARS = 400
# Runs of space are no answer: a space, or a line and its indent. Escapes are all that JSON knows.
JSON_OPTIONS = {
    "json_allow_general_unicode_escapes": True,
    "whitespace_pattern": r"( |\n[ \t]{0,32})",
}


_COUNTS = frozenset(
    ("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "minProperties")
)
# Beyond these the compiler's reader rounds.
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1


class GrammarFailed(Exception):
    """A grammar that cannot be compiled, or that was given a token it does not allow."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a matcher is from: ``anew`` compiles another, None where that takes long."""

    forget: Callable[[], None]
    anew: Callable[[], LLMatcher] | None


class GrammarConstraint:
    """What the whole of an answer must match; then it ends.

    Copies of a matcher share what their lexer has learnt, and its limits: where these are reached
    the constraint goes on with a matcher of its own, so that only its own tokens count.
    """

    def __init__(
        self, matcher: LLMatcher, origin: _Origin | None, taken: Iterable[int], param: str
    ) -> None:
        self._param = param
        self._matcher = matcher
        self._origin = origin
        self._taken = list(taken)

    def fill_mask(self, out: memoryview) -> bool:
        """One bit per token that may come next."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(out))
        self._matcher.unsafe_compute_mask_ptr(address, out.nbytes)
        if self._matcher.is_error():
            self._begin_anew()
            self._matcher.unsafe_compute_mask_ptr(address, out.nbytes)
            self._check()
        return True

    def advance(self, token_id: int) -> None:
        """Take in one token."""
        if not self._matcher.consume_token(token_id):
            self._begin_anew()
            if not self._matcher.consume_token(token_id):
                raise self._failure(_reason(self._matcher.get_error()))
        self._taken.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
            self._check()
            del self._taken[-num_tokens:]

    def fork(self) -> GrammarConstraint:
        """A copy in the same state."""
        return GrammarConstraint(self._matcher.deep_copy(), self._origin, self._taken, self._param)

    def forced(self) -> Sequence[int]:
        """The spelling of a text that must come: the only one that masks allow."""
        forced: list[int] = self._matcher.compute_ff_tokens()
        return () if self._matcher.is_error() else forced  # the next mask says why

    def _begin_anew(self) -> None:
        """Raise what the matcher failed of, unless others may have brought it to its limits."""
        reason, origin = _reason(self._matcher.get_error()), self._origin
        if origin is None or not _is_limit(reason):
            raise self._failure(reason)
        origin.forget()
        if origin.anew is None:
            raise self._failure(reason)
        self._matcher, self._origin = origin.anew(), None
        if self._taken:
            self._matcher.consume_tokens(self._taken)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise self._failure(_reason(self._matcher.get_error()))

    def _failure(self, reason: str) -> Exception:
        if not _is_limit(reason):
            return GrammarFailed(reason)
        message = f"{self._param} grew too complex: {reason}."
        return RequestFailed(message, code="grammar_too_complex", status=422, param=self._param)


def _is_limit(reason: str) -> bool:
    return "too many" in reason or "too complex" in reason


class GrammarCompiler:
    """Compiles for one vocabulary of ``num_ids`` ids; any thread may call."""

    def __init__(self, tokenizer: Tokenizer, num_ids: int) -> None:
        self._tokenizer = tokenizer
        self._num_ids = num_ids
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[LLMatcher, _Origin]] = OrderedDict()

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415 - slow to import

        words = TokenizerWrapper(_Words(self._tokenizer, self._num_ids))
        end_ids = sorted(one for one in self._tokenizer.end_ids if one < self._num_ids)
        return LLTokenizer(words, n_vocab=self._num_ids, eos_token=end_ids)

    @cached_property
    def _workers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_NUM_WORKERS, thread_name_prefix="insitu-grammar")

    def compile(self, grammar: str, param: str) -> GrammarConstraint:
        """A constraint in its first state, of a grammar as ``lark_of`` or ``json_grammar`` give."""
        with self._lock:
            kept = self._kept.get(grammar)
            if kept is not None:
                self._kept.move_to_end(grammar)
                return _constraint(*kept, param)
            vocabulary, workers = self._vocabulary, self._workers
        began_s = time.perf_counter()
        compiling = workers.submit(_compiled, vocabulary, grammar)
        try:
            matcher = compiling.result(COMPILE_TIMEOUT_S)
        except TimeoutError:
            message = f"{param} takes longer than {COMPILE_TIMEOUT_S:g} s to compile."
            raise Refusal(message, param=param, code="grammar_too_complex") from None
        except GrammarFailed as error:
            message = f"{param} cannot be compiled: {error}"
            raise Refusal(message, param=param, code="invalid_grammar") from error
        is_quick = time.perf_counter() - began_s < _QUICK_S
        anew = partial(_compiled, vocabulary, grammar) if is_quick else None
        made = matcher, _Origin(partial(self._forget, grammar, matcher), anew)
        with self._lock:
            self._kept[grammar] = made
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return _constraint(*made, param)

    def _forget(self, grammar: str, matcher: LLMatcher) -> None:
        with self._lock:
            if self._kept.get(grammar, (None,))[0] is matcher:
                del self._kept[grammar]


def _constraint(matcher: LLMatcher, origin: _Origin, param: str) -> GrammarConstraint:
    return GrammarConstraint(matcher.deep_copy(), origin, (), param)


def _compiled(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher whose first mask is known; it allows something."""
    from llguidance import LLMatcher  # noqa: PLC0415 - slow to import

    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarFailed(_reason(matcher.get_error()))
    if not any(mask):
        raise GrammarFailed("nothing matches it.")
    return matcher


def _reason(error: str) -> str:
    """What was wrong, without the text it was wrong in."""
    if "NoExtensionBias" in error:
        return "nothing matches it."
    lines = error.strip().split("\n")
    why = next((one.removeprefix("error: ") for one in lines if one.startswith("error: ")), "")
    return f"{lines[0]} {why}".strip()[:_MAX_REASON_CHARS]


class _Words:
    """A vocabulary as ``llguidance`` wants it: bytes of every token, control tokens named apart."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, num_ids: int) -> None:
        known = range(min(tokenizer.vocab_size, num_ids))
        self._tokenizer = tokenizer
        self.tokens = [tokenizer.token_bytes(one) for one in known]
        self.tokens += [b""] * (num_ids - len(known))
        self.special_token_ids = [one for one in known if tokenizer.is_control(one)]
        self.eos_token_id = min(tokenizer.end_ids, default=0)

    def __call__(self, text: bytes | str) -> list[int]:
        """Ids of a text."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=False)


def grammar_of(guide: Guide) -> str:
    """A guide in the form that the compiler takes."""
    _require_size(guide)
    from llguidance import LLMatcher  # noqa: PLC0415 - slow to import

    if guide.kind in ("json_schema", "json_object"):
        return LLMatcher.grammar_from_json_schema(schema_of(guide))
    if guide.kind == "regex":
        return LLMatcher.grammar_from_regex(_regex(guide))
    if guide.kind == "choice":
        return LLMatcher.grammar_from_lark(f"start: {_choice(guide)}")
    return LLMatcher.grammar_from_lark(_lark(guide))


def lark_of(rules: Sequence[str]) -> str:
    """Rules as a grammar."""
    return "\n".join(("%llguidance {}", *rules))


def expression_of(guide: Guide) -> str | None:
    """A guide as an expression within a Lark grammar; None where it is a grammar of its own."""
    _require_size(guide)
    if guide.kind in ("json_schema", "json_object"):
        return f"%json {json.dumps(schema_of(guide))}"
    if guide.kind == "regex":
        return f"/{_regex(guide).replace('/', chr(92) + '/')}/"
    return _choice(guide) if guide.kind == "choice" else None


def schema_of(guide: Guide) -> dict[str, Any]:
    """A JSON schema with our options; ``json_object`` is any object."""
    schema = {"type": "object"} if guide.kind == "json_object" else guide.value
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise _refused(guide, "is not a JSON schema: an object is wanted")
    if _rebases(schema):
        raise _refused(guide, "has a $id inside, by which a $ref may mean something else")
    return {**with_whole_counts(schema), "x-guidance": JSON_OPTIONS}


def with_whole_counts(schema: Any) -> Any:
    """A schema whose counts are written as integers: 2.0 is 2 in JSON schema, not to a compiler."""
    if isinstance(schema, list):
        return [with_whole_counts(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: int(one)
        if key in _COUNTS and isinstance(one, float) and one.is_integer()
        else with_whole_counts(one)
        for key, one in schema.items()
    }


def _rebases(schema: dict[str, Any]) -> bool:
    """Whether references may have to be read from another base than the schema's own."""
    has_base = has_path = False
    level: list[Any] = list(schema.values())
    while level:
        objects = [one for one in level if isinstance(one, dict)]
        has_base |= any(isinstance(one.get("$id"), str) for one in objects)
        places = [one.get("$ref") for one in (schema, *objects)]
        has_path |= any(isinstance(one, str) and not one.startswith("#") for one in places)
        level = [below for one in level for below in _below(one)]
    return has_base and has_path


def _regex(guide: Guide) -> str:
    if not isinstance(guide.value, str):
        raise _refused(guide, "is not a regular expression's text")
    return guide.value


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _choice(guide: Guide) -> str:
    if not guide.value or not all(isinstance(one, str) and one for one in guide.value):
        raise _refused(guide, "must be one or more texts that are not empty")
    return " | ".join(literal(one) for one in guide.value)


def _lark(guide: Guide) -> str:
    text = guide.value
    if not isinstance(text, str):
        raise _refused(guide, "is not a grammar's text")
    if guide.kind == "lark":
        return text
    if len(text) > _MAX_GBNF_CHARS:
        raise _refused(guide, f"has {len(text)} characters; at most {_MAX_GBNF_CHARS} are read")
    from llguidance import gbnf_to_lark  # noqa: PLC0415 - slow to import

    try:
        converted: str = gbnf_to_lark.gbnf_to_lark(text)
    except Exception as error:
        raise _refused(guide, f"is no GBNF: {_reason(str(error))}") from error
    return converted


def _require_size(guide: Guide) -> None:
    try:
        size = len(json.dumps(guide.value, ensure_ascii=False).encode(errors="replace"))
    except (TypeError, ValueError, RecursionError):
        raise _refused(guide, "is not JSON") from None
    if size > MAX_GUIDE_BYTES:
        raise _refused(guide, f"has {size} bytes; at most {MAX_GUIDE_BYTES} are compiled")
    if depth_of(guide.value) > MAX_DEPTH:
        raise _refused(guide, f"is nested deeper than {MAX_DEPTH}")
    if guide.kind == "json_schema":
        require_numbers(guide.value, guide.param)


def require_numbers(schema: Any, param: str) -> None:
    """Refuse a schema with an integer of more than 64 bits, which would become another number."""
    level = [schema]
    while level:
        if any(type(one) is int and not _MIN_INT <= one <= _MAX_INT for one in level):
            message = f"{param} holds an integer of more than 64 bits."
            raise Refusal(message, param=param, code="invalid_grammar")
        level = [below for one in level for below in _below(one)]


def depth_of(value: Any) -> int:
    """How deep a value is nested, up to one beyond what is allowed."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH + 1:
        depth += 1
        level = [below for one in level for below in _below(one)]
    return depth - 1


def _below(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _refused(guide: Guide, why: str) -> Refusal:
    message = f"{guide.param} {why}."
    return Refusal(message, param=guide.param, code="invalid_grammar")
