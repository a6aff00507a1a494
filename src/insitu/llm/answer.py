"""One choice on its way from sampled ids to deltas: text, stop strings, log-probabilities, usage.

Not here: making ids (``engine``) or whole characters (``codec``).

Always true: joined deltas are the same however they were cut. ``usage`` counts every token up to
and including the one that ended the choice, and those are the ids shown; text ends before the stop
string or end id.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from insitu.codec.detokenizer import Detokenizer
from insitu.types import Delta, FinishReason, TokenLogprob, Usage

if TYPE_CHECKING:
    from insitu.codec.detokenizer import Released
    from insitu.codec.tokenizer import Tokenizer
    from insitu.engine.sequence import Output, SampledToken
    from insitu.types import Prepared


class Answer:
    """Takes a choice's outputs in order."""

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._num_prompt_tokens = prepared.num_prompt_tokens
        self._detokenizer = Detokenizer(tokenizer, prepared.request.sampling.stop)
        # Sampled, their text not yet released.
        self._held: deque[SampledToken] = deque()
        self._num_tokens = 0
        self.is_finished = False

    def take(self, output: Output) -> Delta | None:
        """What an output adds, or None while its text is held back; raises the output's error."""
        if output.error is not None:
            raise output.error
        assert output.token is not None
        assert not self.is_finished
        self._num_tokens += 1
        self._held.append(output.token)
        if output.finish_reason is FinishReason.STOP:
            # An end id: it shows as nothing.
            return self._finish(self._detokenizer.finish(), FinishReason.STOP, ends_by_id=True)
        released = self._detokenizer.push(output.token.token_id)
        if self._detokenizer.is_stopped:
            return self._finish(released, FinishReason.STOP)
        if output.finish_reason is not None:
            released += self._detokenizer.finish()
            return self._finish(released, output.finish_reason)
        if not released:
            return None
        tokens = [self._held.popleft() for _ in released]
        return self._delta("".join(one.text for one in released), tokens)

    def _finish(
        self, released: list[Released], reason: FinishReason, *, ends_by_id: bool = False
    ) -> Delta:
        """The last delta: all text that is left, all ids that were held."""
        self.is_finished = True
        tokens = list(self._held)
        self._held.clear()
        text = "".join(one.text for one in released)
        usage = Usage(self._num_prompt_tokens, self._num_tokens)
        return self._delta(text, tokens, reason, usage, ends_by_id=ends_by_id)

    def _delta(
        self,
        text: str,
        tokens: list[SampledToken],
        reason: FinishReason | None = None,
        usage: Usage | None = None,
        *,
        ends_by_id: bool = False,
    ) -> Delta:
        logprobs = [self._logprob(token) for token in tokens if token.logprob is not None]
        if ends_by_id and logprobs:
            logprobs[-1] = replace(logprobs[-1], text="", bytes=b"")
        return Delta(
            token_ids=tuple(token.token_id for token in tokens),
            content=text,
            logprobs=tuple(logprobs),
            finish_reason=reason,
            usage=usage,
        )

    def _logprob(self, token: SampledToken) -> TokenLogprob:
        assert token.logprob is not None
        top = tuple(self._spelled(token_id, logprob) for token_id, logprob in token.top)
        one = self._spelled(token.token_id, token.logprob, top)
        # A control token among the sampled shows as nothing, in the text and here.
        return replace(one, text="", bytes=b"") if self._is_hidden(token.token_id) else one

    def _is_hidden(self, token_id: int) -> bool:
        return self._tokenizer.is_control(token_id)

    def _spelled(
        self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()
    ) -> TokenLogprob:
        tokenizer = self._tokenizer
        return TokenLogprob(
            token_id, logprob, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), top
        )
