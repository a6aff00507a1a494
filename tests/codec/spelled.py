"""A vocabulary made of whatever a test cuts a text into."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from insitu.codec.answer_text import AnswerText, Speech
from insitu.codec.calls import Calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.codec.detokenizer import Released
    from insitu.codec.reasoning import ReasoningSigns
    from insitu.codec.tools import CallFormat


@dataclass
class Spelled:
    """Every new piece of text is a new token; those in ``controls`` are the model's own signs."""

    controls: frozenset[str] = frozenset()
    pieces: list[str] = field(default_factory=list)
    has_dummy_space: bool = False

    def ids(self, pieces: Sequence[str]) -> list[int]:
        """Tokens of pieces."""
        for piece in pieces:
            if piece not in self.pieces:
                self.pieces.append(piece)
        return [self.pieces.index(piece) for piece in pieces]

    def token_bytes(self, token_id: int) -> bytes:
        """A token's bytes."""
        return self.pieces[token_id].encode()

    def is_control(self, token_id: int) -> bool:
        """Whether it is a sign."""
        return self.pieces[token_id] in self.controls


@dataclass
class Answer:
    """What a text was read as, and whether the text's parts and tokens came in step."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str | None, str | None, str]] = field(default_factory=list)
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_complete_calls: int = 0
    stop: str | None = None

    def take(self, released: list[Released]) -> None:
        """Add what was released."""
        for one in released:
            self.num_tokens += 1
            self.content += one.text
            self.reasoning += one.reasoning
            for piece in one.calls:
                if piece.index == len(self.calls):
                    assert piece.id is not None
                    assert piece.name is not None
                    self.calls.append((piece.id, piece.name, piece.arguments))
                else:
                    assert piece.index == len(self.calls) - 1
                    assert piece.id is None
                    assert piece.name is None
                    call_id, name, arguments = self.calls[-1]
                    self.calls[-1] = (call_id, name, arguments + piece.arguments)


def read(
    pieces: Sequence[str],
    *,
    signs: ReasoningSigns | None = None,
    written: CallFormat | None = None,
    tools: Sequence[str] = (),
    stop: Sequence[str] = (),
    is_thinking: bool = False,
    controls: Sequence[str] = (),
    most: int | None = None,
) -> Answer:
    """What an answer of these pieces, a token each, says."""
    spelled = Spelled(frozenset(controls))
    ids = spelled.ids(pieces)
    sign_ids = frozenset(one for one in ids if spelled.is_control(one))
    calls = Calls({name: {} for name in tools}, lambda index: f"id{index}", most) if tools else None
    speech = Speech(signs, written, sign_ids)
    text = AnswerText(spelled, speech, stop, is_thinking=is_thinking, calls=calls)
    answer = Answer()
    for token_id in ids:
        answer.take(text.push(token_id))
        if text.stopped:
            break
    answer.take(text.finish())
    answer.num_reasoning_tokens = text.num_reasoning_tokens
    answer.num_complete_calls = text.num_complete_calls
    answer.stop = text.stopped.stop if text.stopped else None
    return answer


def cuts(text: str, at: Sequence[int]) -> list[str]:
    """A text cut at some places."""
    places = sorted({0, *at, len(text)})
    return [text[a:b] for a, b in pairwise(places)]
