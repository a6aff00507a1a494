"""Log-probabilities in OpenAI's two forms: of chats, and of text completions.

Always true: no infinities (impossible tokens are left out), and floats are written as they came.
"""

from __future__ import annotations

import codecs
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.types import TokenLogprob


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Entries of ``logprobs.content``."""
    return [{**_entry(one), "top_logprobs": [_entry(top) for top in _shown(one)]} for one in tokens]


def _entry(one: TokenLogprob) -> dict[str, Any]:
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.bytes)}


def _shown(one: TokenLogprob) -> list[TokenLogprob]:
    return [top for top in one.top if math.isfinite(top.logprob)]


def spell_token(one: TokenLogprob) -> str:
    """A token as a key: its text, or its bytes where they are not whole characters."""
    try:
        one.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in one.bytes)
    return one.text


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that a text repeats, and what its first token shows."""

    text: str = ""
    first_token: str = ""


class CompletionLogprobs:
    """Builds the ``logprobs`` object of a text completion, chunk after chunk.

    ``text_offset`` counts characters of the choice's text, from 0.
    """

    def __init__(self, *, has_token_ids: bool) -> None:
        self._has_token_ids = has_token_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def begin(self, echo: Echo, prompt: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object for a prompt that the text repeats: of its first token nothing is known."""
        first = {
            "tokens": echo.first_token,
            "token_logprobs": None,
            "top_logprobs": None,
            "text_offset": 0,
        }
        # A token that only begins a sequence is none of the text.
        if echo.text.startswith(echo.first_token):
            self._offset = len(echo.first_token)
        rest = self.take(prompt)
        # The answer is a text of its own: it completes no character that the prompt left cut.
        self._offset += len(self._decoder.decode(b"", final=True))
        return {name: [value, *rest[name]] for name, value in first.items()}

    def take(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The object for the next tokens of the choice."""
        offsets = []
        for one in tokens:
            num_broken = _num_broken(self._decoder.getstate()[0], one.bytes)
            offsets.append(self._offset + num_broken)
            self._offset += len(self._decoder.decode(one.bytes))
        answer: dict[str, Any] = {
            "tokens": [spell_token(one) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [_by_text(one) for one in tokens],
            "text_offset": offsets,
        }
        if self._has_token_ids:
            tops = [_shown(one) for one in tokens]
            answer["token_ids"] = [one.token_id for one in tokens]
            answer["top_token_ids"] = [[one.token_id for one in top] for top in tops]
            answer["top_token_logprobs"] = [[one.logprob for one in top] for top in tops]
        return answer


def _num_broken(begun: bytes, following: bytes) -> int:
    """How many characters a begun one becomes that these bytes do not go on with."""
    if not begun or not following:
        return 0
    try:
        codecs.getincrementaldecoder("utf-8")().decode(begun + following[:1])
    except UnicodeDecodeError:
        return len(begun.decode(errors="replace"))
    return 0


def _by_text(one: TokenLogprob) -> dict[str, float]:
    """Alternatives by their text, the sampled token among them; of equal texts the likeliest."""
    answer: dict[str, float] = {}
    for top in (*_shown(one), one):
        answer.setdefault(spell_token(top), top.logprob)
    return answer
