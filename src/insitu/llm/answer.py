"""From sampled ids to deltas, choice by choice: text, calls, log-probabilities, usage.

Not here: making ids (``engine``), whole characters or stop strings (``codec``).

Always true: joined deltas are the same however they were cut. Text ends before the stop string or
end id. ``usage`` counts every token up to and including the one that ended the choice: an end id is
among the ids shown, with no text; tokens that begin inside a stop string are not shown.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.llm.speaking import PLAIN, reader_of
from insitu.types import Delta, FinishReason, ReasoningFinish, TokenLogprob, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.codec.answer_text import Speech
    from insitu.codec.detokenizer import Released
    from insitu.codec.tokenizer import Tokenizer
    from insitu.engine.sequence import Output, SampledToken
    from insitu.types import Prepared


class Answers:
    """Takes the outputs of all choices of a request."""

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer, speech: Speech = PLAIN) -> None:
        num_choices = prepared.request.sampling.num_choices
        self._answers = [
            Answer(prepared, tokenizer, index, speech=speech) for index in range(num_choices)
        ]
        self._num_left = num_choices

    @property
    def is_finished(self) -> bool:
        """Whether every choice has had its last delta."""
        return self._num_left == 0

    def take(self, output: Output) -> Delta | None:
        """What an output adds; None while its text is held back, or past its choice's end."""
        answer = self._answers[output.choice]
        if answer.is_finished:
            return None
        delta = answer.take(output)
        self._num_left -= answer.is_finished
        return delta


class Answer:
    """Takes a choice's outputs in order."""

    def __init__(
        self, prepared: Prepared, tokenizer: Tokenizer, index: int = 0, *, speech: Speech = PLAIN
    ) -> None:
        self._index = index
        self._num_cached_tokens = 0
        self._tokenizer = tokenizer
        self._num_prompt_tokens = prepared.num_prompt_tokens
        self._max_reasoning_tokens = prepared.max_reasoning_tokens
        self._reader = reader_of(prepared, tokenizer, speech, index)
        # Sampled, their text not yet released.
        self._held: deque[SampledToken] = deque()
        self._prompt_tokens: tuple[SampledToken, ...] = ()
        self._num_tokens = 0
        self.is_finished = False

    def take(self, output: Output) -> Delta | None:
        """What an output adds, or None while its text is held back; raises the output's error."""
        if output.error is not None:
            raise output.error
        assert output.token is not None
        assert not self.is_finished
        self._num_tokens += 1
        if self._index == 0:  # of a prompt that is counted once
            self._num_cached_tokens = output.num_cached_tokens
        self._held.append(output.token)
        self._prompt_tokens = self._prompt_tokens or output.prompt_tokens
        ends_by_id = output.finish_reason is FinishReason.STOP
        # An end id has no text to look for stop strings in.
        released = [] if ends_by_id else self._reader.push(output.token.token_id)
        if output.finish_reason is not None:
            released += self._reader.finish()
        if self._reader.stopped is not None:
            found = self._reader.stopped
            last = self._last(released, FinishReason.STOP, found.token_index + 1)
            return replace(last, stop=found.stop or None)
        if output.finish_reason is not None:
            end = [self._held.pop()] if ends_by_id else []
            return self._last(released, output.finish_reason, self._num_tokens, end)
        return self._delta(released) if released else None

    def _last(
        self,
        released: list[Released],
        reason: FinishReason,
        num_tokens: int,
        end: Sequence[SampledToken] = (),
    ) -> Delta:
        self.is_finished = True
        reader, ended = self._reader, None
        num_reasoning = reader.num_reasoning_tokens
        usage = Usage(self._num_prompt_tokens, num_tokens, self._num_cached_tokens, num_reasoning)
        if reader.has_reasoned:
            most = self._max_reasoning_tokens
            is_spent = most is not None and num_reasoning >= most
            ended = ReasoningFinish.BUDGET if is_spent else ReasoningFinish.NATURAL
        if reason is FinishReason.STOP and reader.num_complete_calls:
            reason = FinishReason.TOOL_CALLS
        delta = self._delta(released, end)
        return replace(delta, finish_reason=reason, usage=usage, reasoning_finish=ended)

    def _delta(self, released: list[Released], end: Sequence[SampledToken] = ()) -> Delta:
        """The tokens whose text is certain, then an end id, which shows as nothing."""
        tokens = [self._held.popleft() for _ in released]
        logprobs = [
            self._logprob(token, token.logprob) for token in tokens if token.logprob is not None
        ]
        logprobs += [
            replace(self._logprob(token, token.logprob), text="", bytes=b"")
            for token in end
            if token.logprob is not None
        ]
        prompt_tokens, self._prompt_tokens = self._prompt_tokens, ()
        return Delta(
            index=self._index,
            prompt_logprobs=tuple(
                self._spelled(one.token_id, one.logprob, self._top(one))
                for one in prompt_tokens
                if one.logprob is not None
            ),
            token_ids=tuple(token.token_id for token in (*tokens, *end)),
            content="".join(one.text for one in released),
            logprobs=tuple(logprobs),
            reasoning="".join(one.reasoning for one in released),
            tool_calls=tuple(piece for one in released for piece in one.calls),
        )

    def _logprob(self, token: SampledToken, logprob: float) -> TokenLogprob:
        one = self._spelled(token.token_id, logprob, self._top(token))
        # A control token shows as nothing, in the text and here, so that both run in step.
        return (
            replace(one, text="", bytes=b"") if self._tokenizer.is_control(token.token_id) else one
        )

    def _top(self, token: SampledToken) -> tuple[TokenLogprob, ...]:
        return tuple(self._spelled(token_id, logprob) for token_id, logprob in token.top)

    def _spelled(
        self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        tokenizer = self._tokenizer
        return TokenLogprob(
            token_id, logprob, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), top
        )
