"""What a model thinks before it answers: the signs around it, by the families' chat templates.

One rule: reasoning is what stands at the beginning of an answer, from the opening sign (which the
template may already have written) to the first closing sign. All that follows is the answer,
whatever signs it quotes. Line breaks next to the signs belong to them.

Not here: budgets (``budget``). Always true: whether a prompt ends inside reasoning is read from
what the template wrote last, never from a caller's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.codec.reading import Part, follows, skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.codec.reading import Reader, Source

_BREAKS = "\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningSigns:
    """What opens and closes reasoning; ``answers`` open an answer without any.

    ``is_awaited``: a closing sign that nothing opened closes reasoning too, so that no answer is
    shown before it is known to hold none.
    """

    name: str
    opening: str
    closing: str
    answers: tuple[str, ...] = ()
    is_awaited: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """All signs."""
        return (self.opening, self.closing, *self.answers)


_CHANNELS = ReasoningSigns(
    "channels",
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    ("<|channel|>final<|message|>",),
)
KNOWN = (
    ReasoningSigns("think", "<think>", "</think>"),
    ReasoningSigns("thinking", "<|START_THINKING|>", "<|END_THINKING|>"),
    ReasoningSigns("brackets", "[THINK]", "[/THINK]"),
    ReasoningSigns("seed", "<seed:think>", "</seed:think>"),
    ReasoningSigns("thought", "<thought>", "</thought>"),
    ReasoningSigns("reasoning", "<reasoning>", "</reasoning>"),
)
NAMES = (*(signs.name for signs in KNOWN), _CHANNELS.name)


def signs_named(name: str) -> ReasoningSigns | None:
    """Signs by the name a flag may give; None for ``none``."""
    return next((signs for signs in (*KNOWN, _CHANNELS) if signs.name == name), None)


def signs_of(template: str) -> ReasoningSigns | None:
    """The signs that a chat template's text speaks of."""
    if "<|channel|>" in template and "analysis" in template:
        return _CHANNELS
    for signs in KNOWN:
        if signs.opening in template or signs.closing in template:
            return signs
    return None


def is_open(signs: ReasoningSigns, pieces: Sequence[tuple[str, bool]]) -> bool:
    """Whether the template's own last words open reasoning; ``pieces`` as in ``TypedText``."""
    return _last_words(pieces).endswith(signs.opening)


def is_closed(signs: ReasoningSigns, pieces: Sequence[tuple[str, bool]]) -> bool:
    """Whether the template's own last words close it: there is to be none."""
    return _last_words(pieces).endswith(signs.closing)


def _last_words(pieces: Sequence[tuple[str, bool]]) -> str:
    words = []
    for text, is_templates in reversed(pieces):
        if not is_templates:
            break
        words.append(text)
    return "".join(reversed(words)).rstrip()


@dataclass(slots=True)
class ReasoningSpan:
    """Where reasoning lies: characters [start, end) of the answer, as far as known."""

    start: int | None = None
    end: int | None = None


def read_reasoning(
    source: Source, signs: ReasoningSigns, span: ReasoningSpan, *, is_thinking: bool
) -> Reader[None]:
    """Read reasoning and its signs, up to where the answer begins."""
    has_begun = is_thinking or (yield from _opens(source, signs))
    if not has_begun and not (signs.is_awaited and (yield from _closes(source, signs))):
        return
    span.start = source.position
    yield from skip(source, _BREAKS)
    while True:
        at = source.text.find(signs.closing, source.at)
        end = at if at >= 0 else source.certain((signs.closing,))
        if at < 0 and source.is_ended:
            end = len(source.text)
        shown = len(source.text[:end].rstrip(_BREAKS))
        if shown > source.at:
            text = source.take(shown)
            yield Part(source.position, reasoning=text)
        if at >= 0:
            source.take(at)
            span.end = source.position
            source.at = at + len(signs.closing)
            yield from skip(source, _BREAKS)
            return
        if not (yield from source.more()):
            source.take(end)
            return


def _opens(source: Source, signs: ReasoningSigns) -> Reader[bool]:
    """Read an opening sign, if the answer begins with one; or one that opens the answer proper."""
    source.mark()
    if (yield from skip(source)):
        for sign in (signs.opening, *signs.answers):
            if (yield from follows(source, sign)):
                source.keep()
                return sign == signs.opening
    source.back()
    return False


def _closes(source: Source, signs: ReasoningSigns) -> Reader[bool]:
    """Whether a closing sign comes; nothing is read."""
    source.mark()
    num_searched = 0
    while (at := source.text.find(signs.closing, source.at + num_searched)) < 0:
        num_searched = max(0, len(source.left) - len(signs.closing) + 1)
        if not (yield from source.more()):
            break
    source.back()
    return at >= 0
