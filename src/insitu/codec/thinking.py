"""Reasoning as a constraint on tokens: its budget, and what may follow once it is over.

    prompt ... <think>  reasoning  </think>  gap  answer
                        |  budget  | forced       | the inner constraint

Where the template has not opened reasoning, the answer may begin with its opening sign. Not here:
reading the text (``reasoning``), grammars (``grammar``).

Always true: after ``max_tokens`` of reasoning the closing sign is the only thing allowed; the inner
constraint takes in what comes after reasoning and nothing else; under it reasoning must be closed.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.codec.reasoning import ReasoningSigns
    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import TokenConstraint

# What may stand between the closing sign and an answer that has to match something.
_GAPS = ("\n", "\n\n")


class Stage(Enum):
    """Where an answer is."""

    OPENING = auto()  # it may begin with a sign
    INSIDE = auto()
    GAP = auto()
    ANSWER = auto()


class ThinkingWords:
    """A model's signs as its vocabulary spells them; made once, shared by all requests."""

    def __init__(self, tokenizer: Tokenizer, signs: ReasoningSigns, num_ids: int) -> None:
        self._tokenizer = tokenizer
        self._num_ids = num_ids
        self.closing = signs.closing.encode()
        self.openings = {signs.opening.encode(): Stage.INSIDE}
        self.openings.update({sign.encode(): Stage.GAP for sign in signs.answers})
        self.gap_ids = [ids[0] for ids in map(self._spelt, _GAPS) if len(ids) == 1]
        self.end_ids = [one for one in tokenizer.end_ids if one < num_ids]
        self._rests: dict[bytes, tuple[int, ...]] = {}

    def _spelt(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    def token_bytes(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self._tokenizer.token_bytes(token_id)

    def rest(self, sign: bytes) -> tuple[int, ...]:
        """Tokens that spell a sign, or what is left of one."""
        known = self._rests.get(sign)
        if known is None:
            known = self._rests[sign] = tuple(self._spelt(sign.decode()))
        return known

    @cached_property
    def overlong(self) -> dict[int, list[int]]:
        """By known bytes of the closing sign: tokens that finish it and begin the answer too."""
        found: dict[int, list[int]] = {}
        size = len(self.closing)
        for token_id in range(min(self._num_ids, self._tokenizer.vocab_size)):
            spelt = self._tokenizer.token_bytes(token_id)
            at = spelt.find(self.closing)
            if at >= 0 and spelt[at + size :].strip():
                found.setdefault(0, []).append(token_id)
            for num_left in range(1, min(size, len(spelt))):
                if spelt.startswith(self.closing[-num_left:]) and spelt[num_left:].strip():
                    found.setdefault(size - num_left, []).append(token_id)
        return found

    def num_known(self, tail: bytes) -> int:
        """How many bytes at the end of a text begin the closing sign."""
        for size in range(min(len(tail), len(self.closing) - 1), 0, -1):
            if tail.endswith(self.closing[:size]):
                return size
        return 0


@dataclass(frozen=True, slots=True)
class _State:
    """Where an answer is; ``taken`` is what there is of an opening sign, ``tail`` the last bytes.

    ``forced`` must come next. ``has_advanced``: the inner constraint took in the last token.
    """

    stage: Stage
    taken: bytes = b""
    tail: bytes = b""
    num_tokens: int = 0
    forced: tuple[int, ...] = ()
    has_advanced: bool = False


@dataclass(slots=True)
class ThinkingConstraint:
    """Follows an answer token by token."""

    words: ThinkingWords
    max_tokens: int | None
    inner: TokenConstraint | None
    states: list[_State] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        words: ThinkingWords,
        *,
        is_thinking: bool,
        max_tokens: int | None,
        inner: TokenConstraint | None,
    ) -> ThinkingConstraint:
        """The state before an answer's first token."""
        made = cls(words, max_tokens, inner)
        stage = Stage.INSIDE if is_thinking else Stage.OPENING
        made.states.append(made._limited(_State(stage)))
        return made

    def fill_mask(self, out: memoryview) -> bool:
        """One bit per token that may come next; False where all may."""
        state = self.states[-1]
        if state.forced:
            _allow(out, state.forced[:1])
            return True
        if state.stage is Stage.INSIDE:
            return self._mask_inside(out, state)
        if self.inner is None:
            return False
        if state.stage is Stage.OPENING and state.taken:
            _allow(out, self._next_of_opening(state))
            return True
        if not self.inner.fill_mask(out):
            return False
        if state.stage is Stage.OPENING:
            _allow(out, self._next_of_opening(state))
        elif state.stage is Stage.GAP:
            _allow(out, self.words.gap_ids)
        return True

    def advance(self, token_id: int) -> None:
        """Take in one token."""
        state = self.states[-1]
        if state.forced:
            # A mask allows nothing else.
            assert token_id == state.forced[0]
            state = replace(state, forced=state.forced[1:])
        self.states.append(self._limited(self._after(state, token_id)))

    def rollback(self, num_tokens: int) -> None:
        """Undo the last tokens."""
        if not num_tokens:
            return
        undone = sum(state.has_advanced for state in self.states[-num_tokens:])
        del self.states[-num_tokens:]
        if self.inner is not None and undone:
            self.inner.rollback(undone)

    def fork(self) -> ThinkingConstraint:
        """A copy in the same state."""
        inner = None if self.inner is None else self.inner.fork()
        return ThinkingConstraint(self.words, self.max_tokens, inner, list(self.states))

    def forced(self) -> Sequence[int]:
        """What must come next, in order."""
        state = self.states[-1]
        return state.forced or (() if self.inner is None else self._inner_forced(state))

    def _inner_forced(self, state: _State) -> Sequence[int]:
        assert self.inner is not None
        return self.inner.forced() if state.stage is Stage.ANSWER else ()

    def _mask_inside(self, out: memoryview, state: _State) -> bool:
        if self.inner is None:
            return False
        known = self.words.num_known(state.tail)
        banned = {*self.words.end_ids, *self.words.overlong.get(0, ())}
        if known:
            banned.update(self.words.overlong.get(known, ()))
        _allow_others(out, banned)
        return True

    def _next_of_opening(self, state: _State) -> list[int]:
        """The tokens with which an opening sign goes on."""
        taken, words = state.taken, self.words
        left = [sign[len(taken) :] for sign in words.openings if sign.startswith(taken)]
        return [words.rest(one)[0] for one in left]

    def _after(self, state: _State, token_id: int) -> _State:
        if state.stage is Stage.INSIDE:
            return self._after_inside(state, token_id)
        if state.stage is Stage.OPENING:
            opened = self._after_opening(state, token_id)
            if opened is not None:
                return opened
        elif state.stage is Stage.GAP and token_id in self.words.gap_ids:
            return _State(Stage.ANSWER)
        if self.inner is not None:
            self.inner.advance(token_id)
        return _State(Stage.ANSWER, has_advanced=True)

    def _after_opening(self, state: _State, token_id: int) -> _State | None:
        """Where an opening sign goes on, or ends; None where it does neither."""
        taken = state.taken + self.words.token_bytes(token_id)
        if self.inner is None:
            taken = taken.lstrip()
        for sign, stage in self.words.openings.items():
            if taken.startswith(sign) and (self.inner is None or taken == sign):
                return _State(stage, tail=taken[len(sign) :])
            if sign.startswith(taken):
                return _State(Stage.OPENING, taken)
        return None

    def _after_inside(self, state: _State, token_id: int) -> _State:
        closing = self.words.closing
        text = state.tail + self.words.token_bytes(token_id)
        if closing in text:
            return _State(Stage.GAP)
        tail = text[-(len(closing) - 1) :] if len(closing) > 1 else b""
        num_tokens = state.num_tokens + 1
        return replace(state, tail=tail, num_tokens=num_tokens, has_advanced=False)

    def _limited(self, state: _State) -> _State:
        """Force the closing sign where the budget is spent."""
        is_spent = self.max_tokens is not None and state.num_tokens >= self.max_tokens
        if state.stage is not Stage.INSIDE or state.forced or not is_spent:
            return state
        return replace(state, forced=self._ending(state))

    def _ending(self, state: _State) -> tuple[int, ...]:
        known = self.words.num_known(state.tail)
        return self.words.rest(self.words.closing[known:])


def _bits(out: memoryview) -> ctypes.Array[ctypes.c_uint8]:
    return (ctypes.c_uint8 * out.nbytes).from_buffer(out)


def _allow(out: memoryview, ids: Sequence[int]) -> None:
    bits = _bits(out)
    for token_id in ids:
        bits[token_id // 8] |= 1 << token_id % 8


def _allow_others(out: memoryview, ids: set[int]) -> None:
    """Every token but these."""
    bits = _bits(out)
    ctypes.memset(bits, 0xFF, len(bits))
    for token_id in ids:
        bits[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
