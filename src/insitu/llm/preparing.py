"""Turn a request into ids, or refuse it: templates, tokenising, lengths, seeds.

Not here: threads or running. Everything here may take milliseconds and runs off the event loop.

Always true: what comes out fits the context and the vocabulary; nothing was clamped on the way.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from insitu.llm.choosing import Chooser
from insitu.llm.embedding import prepare_embedding
from insitu.llm.guiding import Guiding
from insitu.refusal import Refusal
from insitu.types import Prepared, Tokenized

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from insitu.codec.chat import ChatTemplate
    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Message, Request

# Of a text that is to be cut: characters a token that are looked at first, and tokens that must lie
# behind the cut, so that where the part ends moves none before it.
_FIRST_CHARS = 8
_MORE_TOKENS = 64
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Preparer:
    """Knows the model's names, vocabulary and context."""

    names: frozenset[str]
    tokenizer: Tokenizer
    template: ChatTemplate
    vocab_size: int
    max_model_len: int
    embedding_size: int = 0
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    chooser: Chooser = field(init=False)
    guiding: Guiding = field(default_factory=Guiding)

    def __post_init__(self) -> None:
        """Begin with no words known."""
        chooser = Chooser(self.tokenizer, self.vocab_size, self.sampling_defaults)
        object.__setattr__(self, "chooser", chooser)

    def prepare(self, request: Request) -> Prepared:
        """Ids, with ``max_tokens`` and ``seed`` resolved."""
        sampling = request.sampling
        self._require_ids("stop_token_ids", sampling.stop_token_ids)
        self.guiding.require(request)
        tokenized = self.tokenize(request)
        if request.embedding is not None:
            return prepare_embedding(request, tokenized, self.max_model_len, self.embedding_size)
        max_tokens = self._max_tokens(request, len(tokenized.token_ids))
        self.chooser.check(sampling, max_tokens)
        return Prepared(
            request=request,
            prompt_ids=tokenized.token_ids,
            max_tokens=max_tokens,
            seed=secrets.randbits(64) if sampling.seed is None else sampling.seed,
            prompt_text=tokenized.prompt_text,
            warnings=tokenized.warnings,
            is_thinking=bool(tokenized.is_thinking),
            max_reasoning_tokens=self.guiding.max_reasoning_tokens(request),
            constraint=self.guiding.constraint(request, is_thinking=tokenized.is_thinking),
        )

    def tokenize(self, request: Request) -> Tokenized:
        """Ids of the prompt, or of the rendered messages and their text."""
        self._require_model(request.model)
        if (request.messages is None) == (request.prompt is None):
            raise Refusal("Give exactly one of prompt and messages.", code="invalid_value")
        if request.messages is not None:
            return self._chat(request)
        if isinstance(request.prompt, str):
            return self._text(request, request.prompt)
        token_ids = tuple(request.prompt or ())
        self._require_ids("prompt", token_ids)
        return Tokenized(_not_empty(token_ids, "prompt"))

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """Text of ids, control tokens shown."""
        ids = list(token_ids)
        self._require_ids("tokens", ids)
        return self.tokenizer.detokenize(ids, show_control=True)

    def _chat(self, request: Request) -> Tokenized:
        assert request.messages is not None
        _require_messages(request.messages)
        kwargs = self.guiding.template_kwargs(request, self.template.variables)
        values: dict[str, Any] = {"tools": self.guiding.shown_tools(request), "kwargs": kwargs}
        typed = self.template.render(
            request.messages, add_generation_prompt=request.add_generation_prompt, **values
        )
        warnings = tuple(
            f"This model's chat template does not show {path}."
            for path in self.template.unread(request.messages, **values)
        )
        self._require_possible(typed.text, "messages")
        token_ids = tuple(self.tokenizer.encode_typed(typed.pieces))
        self._require_rows("messages", token_ids)
        is_thinking = self.guiding.is_thinking(typed.pieces)
        return Tokenized(_not_empty(token_ids, "messages"), typed.text, warnings, is_thinking)

    def _text(self, request: Request, text: str) -> Tokenized:
        if request.embedding is not None and request.embedding.is_cut:
            text = self._beginning(request, text)
        else:
            self._require_possible(text, "prompt")
        token_ids = self._ids_of(request, text)
        self._require_rows("prompt", token_ids)
        warnings = []
        if not request.parse_special:
            spelled = self.tokenizer.spells_added_token(text)
            if spelled is not None:
                warnings.append(
                    f"The prompt spells the token {spelled!r}, which was encoded as plain text; "
                    "set parse_special to true to encode it as that token."
                )
        return Tokenized(_not_empty(token_ids, "prompt"), text, tuple(warnings))

    def _ids_of(self, request: Request, text: str) -> tuple[int, ...]:
        how = {"parse_special": request.parse_special}
        special = request.add_special_tokens
        return tuple(self.tokenizer.encode(text, add_special_tokens=special, **how))

    def _beginning(self, request: Request, text: str) -> str:
        """As much of a text as has more tokens than the context holds, or all of it."""
        num_chars = _FIRST_CHARS * self.max_model_len
        while num_chars < len(text):
            part = text[:num_chars]
            if len(self._ids_of(request, part)) >= self.max_model_len + _MORE_TOKENS:
                return part
            num_chars *= 4
        return text

    def _require_possible(self, text: str, param: str) -> None:
        """Refuse a text that not even the longest tokens could make fit, before it is cut up."""
        if len(text) <= self.max_model_len:
            return
        least = self.tokenizer.least_num_tokens(text)
        if least > self.max_model_len:
            raise Refusal(
                f"This model's maximum context length is {self.max_model_len} tokens, but a prompt "
                f"of {len(text)} characters has more than {least - 1}.",
                param=param,
                code="context_length_exceeded",
            )

    def _max_tokens(self, request: Request, num_prompt_tokens: int) -> int:
        asked = request.sampling.max_tokens
        room = self.max_model_len - num_prompt_tokens
        if room >= 1 and (asked is None or asked <= room):
            return room if asked is None else asked
        prompt = "prompt" if request.messages is None else "messages"
        wanted = "" if asked is None else f" and max_tokens {asked}"
        raise Refusal(
            f"This model's maximum context length is {self.max_model_len} tokens, but the prompt "
            f"has {num_prompt_tokens}{wanted}: {num_prompt_tokens + (asked or 1)} in all.",
            param="max_tokens" if room >= 1 else prompt,
            code="context_length_exceeded",
        )

    def _require_model(self, name: str) -> None:
        if name not in self.names:
            raise Refusal(
                "The model does not exist or is not served here.",
                param="model",
                code="model_not_found",
                status=404,
            )

    def _require_rows(self, param: str, token_ids: tuple[int, ...]) -> None:
        """A tokenizer.json may hold tokens that were added after the model was made."""
        if max(token_ids, default=0) >= self.vocab_size:
            token_id = max(token_ids)
            text = self.tokenizer.token_text(token_id)
            message = f"The model has no embedding for token {token_id}, {text[:40]!r}."
            raise Refusal(message, param=param, code="unencodable_text")

    def _require_ids(self, param: str, token_ids: Iterable[int]) -> None:
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < self.vocab_size:
                raise Refusal(
                    f"{param}[{index}] is {token_id}; the model's token ids run from 0 to "
                    f"{self.vocab_size - 1}.",
                    param=param,
                    code="invalid_token_id",
                )


def _require_messages(messages: Sequence[Message]) -> None:
    """Templates pass over roles they do not know, and print what is not text as they please."""
    if not messages:
        raise _wrong("messages", "one or more")
    for index, message in enumerate(messages):
        content: object = message.content
        if message.role not in ROLES:
            raise _wrong(f"messages[{index}].role", f"one of {', '.join(ROLES)}")
        if content is not None and not isinstance(content, str):
            raise _wrong(f"messages[{index}].content", "text")


def _wrong(param: str, wanted: str) -> Refusal:
    return Refusal(f"{param} must be {wanted}.", param=param, code="invalid_value")


def _not_empty(token_ids: tuple[int, ...], param: str) -> tuple[int, ...]:
    if not token_ids:
        raise Refusal("The prompt has no tokens.", param=param, code="empty_prompt")
    return token_ids
