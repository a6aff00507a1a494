"""The text of one answer as tokens come: reasoning, content and calls, cut at stop strings.

It speaks like a ``Detokenizer``, and is used in its place where an answer may hold more than
content. Not here: what the signs are (``reasoning``, ``tools``).

Always true: joined parts are the same however the text fell into tokens; stop strings are looked
for in content alone, and only within what is not interrupted by a call.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from insitu.codec.detokenizer import Detokenizer, Released, StopMatch
from insitu.codec.reading import Part, Source
from insitu.codec.reasoning import ReasoningSigns, ReasoningSpan, read_reasoning
from insitu.codec.stops import StopScan
from insitu.codec.tools import CallFormat, read_content

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.codec.calls import Calls
    from insitu.codec.detokenizer import TokenSpelling
    from insitu.codec.reading import Reader


@dataclass(frozen=True, slots=True)
class Speech:
    """What an answer may hold beside content; ``sign_ids`` are tokens that are signs of it."""

    signs: ReasoningSigns | None = None
    format: CallFormat | None = None
    sign_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Token:
    """A token whose text is not released yet: characters [start, end)."""

    released: Released
    start: int
    end: int


class AnswerText:
    """Takes a choice's tokens in order."""

    def __init__(
        self,
        tokenizer: TokenSpelling,
        speech: Speech,
        stop: Sequence[str] = (),
        *,
        is_thinking: bool = False,
        calls: Calls | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, shown_ids=speech.sign_ids)
        self._stop = stop
        self._scan = StopScan(stop)
        self._source = Source()
        self._span = ReasoningSpan()
        self._calls = calls
        self._reader = self._read(speech, is_thinking=is_thinking)
        next(self._reader, None)
        self._tokens: deque[_Token] = deque()
        self._parts: deque[Part] = deque()  # not released yet
        self._starts: list[int] = []  # of every token
        self._ends: list[int] = []
        self._num_chars = 0
        self._stopped: StopMatch | None = None

    @property
    def stopped(self) -> StopMatch | None:
        """What ended the text early: a stop string, or the only call that was allowed."""
        return self._stopped

    @property
    def num_complete_calls(self) -> int:
        """Calls that are whole."""
        return 0 if self._calls is None else self._calls.num_complete

    @property
    def has_reasoned(self) -> bool:
        """Whether there was reasoning, and it was closed."""
        return self._span.end is not None

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens whose text lies between the signs of reasoning.

        A token that begins the closing sign is none, though it may show a character that was cut.
        """
        if self._span.start is None:
            return 0
        end = self._num_chars if self._span.end is None else self._span.end
        num_before = bisect_left(self._starts, self._span.start)
        return max(0, bisect_right(self._ends, end) - num_before)

    def push(self, token_id: int) -> list[Released]:
        """Take the next token; give those whose text is now certain. Nothing after a stop."""
        if self._stopped:
            return []
        return self._take(self._detokenizer.push(token_id))

    def finish(self) -> list[Released]:
        """No token follows: give what was held back."""
        if self._stopped:
            return []
        released = self._take(self._detokenizer.finish())
        if self._stopped:
            return released
        self._source.is_ended = True
        self._advance()
        self._scan.finish()
        return released + self._release(is_final=True)

    def _read(self, speech: Speech, *, is_thinking: bool) -> Reader[None]:
        if speech.signs is not None:
            yield from read_reasoning(
                self._source, speech.signs, self._span, is_thinking=is_thinking
            )
        yield from read_content(self._source, speech.format, self._calls)

    def _take(self, spoken: list[Released]) -> list[Released]:
        released: list[Released] = []
        for one in spoken:
            start = self._num_chars
            self._num_chars += len(one.text)
            self._starts.append(start)
            self._ends.append(self._num_chars)
            self._tokens.append(_Token(one, start, self._num_chars))
            is_hidden = self._tokenizer.is_control(one.token_id)
            self._source.push(one.text, is_hidden=is_hidden)
            self._advance()
            released += self._release(is_final=False)
            if self._stopped:
                break
        return released

    def _advance(self) -> None:
        """Read what can be read."""
        for part in self._reader:
            if part is None:
                return
            if part.content:
                self._scan.push(part.content)
            elif not self._end_content():
                return
            self._parts.append(part)
            if self._scan.found is not None:
                return

    def _end_content(self) -> bool:
        """Content was interrupted; whether it goes on, because no stop string was in it."""
        self._scan.finish()
        if self._scan.found is None:
            self._scan = StopScan(self._stop)
        return self._scan.found is None

    def _release(self, *, is_final: bool) -> list[Released]:
        if self._scan.found is not None:
            return self._cut_at_stop()
        if self._calls is not None and self._calls.is_full:
            return self._cut_at(self._parts[-1].end if self._parts else self._num_chars)
        settled = self._num_chars if is_final else self._settled()
        out = []
        while self._tokens and self._tokens[0].end <= settled:
            token = self._tokens.popleft()
            is_last = is_final and not self._tokens
            out.append(self._filled(token, self._num_chars if is_last else token.end))
        return out

    def _settled(self) -> int:
        """Up to which character every token's text is certain."""
        held = self._scan.num_chars - self._scan.num_certain
        settled = self._source.settled
        if not held:
            return settled
        return min(settled, self._place(self._scan.num_certain))

    def _place(self, index: int) -> int:
        """Where in the text the content's character ``index`` stands, of the scan's content."""
        end = self._scan.num_chars
        for part in reversed(self._parts):
            if not part.content:
                break
            start = end - len(part.content)
            if index >= start:
                return part.end - (end - index)
            end = start
        return self._source.settled

    def _filled(self, token: _Token, end: int) -> Released:
        """A token with the parts that end within it, or before."""
        content, reasoning, calls = [], [], []
        while self._parts and self._parts[0].end <= end:
            part = self._parts.popleft()
            content.append(part.content)
            reasoning.append(part.reasoning)
            if part.call is not None:
                calls.append(part.call)
        return replace(
            token.released,
            text="".join(content),
            reasoning="".join(reasoning),
            calls=tuple(calls),
        )

    def _cut_at_stop(self) -> list[Released]:
        found = self._scan.found
        assert found is not None
        start, end = self._place(found.start), self._place(found.end - 1) + 1
        # The content behind the cut goes.
        left = self._scan.num_chars - found.start
        while left and self._parts:
            part = self._parts.pop()
            if len(part.content) > left:
                kept = part.content[: len(part.content) - left]
                self._parts.append(replace(part, content=kept, end=min(part.end, start)))
            left -= min(left, len(part.content))
        index = self._index_of(end)
        released = self._cut(start)
        self._stopped = StopMatch(found.stop, index, start)
        return released

    def _cut_at(self, end: int) -> list[Released]:
        index = self._index_of(end)
        released = self._cut(end)
        self._stopped = StopMatch("", index, end)
        return released

    def _index_of(self, end: int) -> int:
        """The token with which the text up to a character was complete."""
        return next(one.released.index for one in self._tokens if one.end >= end)

    def _cut(self, cut: int) -> list[Released]:
        """Tokens that begin before the cut; the others are never shown."""
        shown = [token for token in self._tokens if token.start < cut]
        self._tokens.clear()
        out = [self._filled(token, token.end) for token in shown[:-1]]
        out += [self._filled(token, self._num_chars) for token in shown[-1:]]
        return out
