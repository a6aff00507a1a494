"""Tool calls in a model's answer: which format its template speaks, and how an answer is read.

A call stays text unless it calls a tool of the request in the model's own format. Within reasoning
nothing is a call.

Not here: the formats' readers (``call_formats``), grammars that force calls (``tool_grammar``).
Always true: text that is not a call is content to the character; space behind calls is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from insitu.codec import call_formats
from insitu.codec.calls import Calls, Enough, NotACall
from insitu.codec.reading import Part, Reader, Source, follows, skip

FormatReader = Callable[[Source, Calls], Reader[None]]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls.

    ``openings``: signs that begin calls anywhere in an answer. ``starts``: signs, or first
    characters, with which an answer that is calls begins; nothing in its middle is one.
    ``id_chars``: how long the ids are that its template takes.
    """

    name: str
    read: FormatReader
    openings: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    id_chars: int = 24
    others: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All signs that may be tokens of their own."""
        return (*self.openings, *self.starts, *self.others)


FORMATS = (
    CallFormat(
        "deepseek",
        call_formats.read_deepseek,
        ("<｜tool▁calls▁begin｜>",),
        others=(
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
            "<｜tool▁calls▁end｜>",
        ),
    ),
    CallFormat(
        "mistral",
        call_formats.read_mistral,
        ("[TOOL_CALLS]",),
        id_chars=9,
        others=("[ARGS]", "[CALL_ID]"),
    ),
    CallFormat("granite", call_formats.read_objects, ("<|tool_call|>",)),
    CallFormat("hermes", call_formats.read_tagged, ("<tool_call>",), others=("</tool_call>",)),
    CallFormat("gemma", call_formats.read_fenced, ("```tool_code\n",)),
    CallFormat(
        "pythonic",
        call_formats.read_pythonic,
        starts=("<|python_start|>", "["),
        others=("<|python_end|>",),
    ),
    CallFormat("llama3", call_formats.read_objects, starts=("<|python_tag|>", "{")),
)
NAMES = tuple(one.name for one in FORMATS)
# What a template's text holds that speaks a format; the first that fits.
_MARKS = {
    "deepseek": ("<｜tool▁calls▁begin｜>",),
    "mistral": ("[TOOL_CALLS]",),
    "granite": ("<|tool_call|>",),
    "hermes": ("<tool_call>",),
    "gemma": ("```tool_code",),
    "pythonic": ("<|python_start|>", "[func_name", "[func(", "func_name1("),
    "llama3": ("<|python_tag|>", '"parameters": dictionary'),
}


def format_named(name: str) -> CallFormat | None:
    """A format by the name a flag may give; None for ``none``."""
    return next((one for one in FORMATS if one.name == name), None)


def format_of(template: str) -> CallFormat | None:
    """The format that a chat template's text speaks, if it is one we know."""
    for name, marks in _MARKS.items():
        if any(mark in template for mark in marks):
            return format_named(name)
    return None


def read_content(source: Source, written: CallFormat | None, calls: Calls | None) -> Reader[None]:
    """Read an answer that may hold calls, from where reasoning is over to its end."""
    if written is None or calls is None:
        yield from _read_text(source)
        return
    try:
        if written.starts:
            yield from _read_start(source, written, calls)
            yield from _read_text(source)
        else:
            yield from _read_between(source, written, calls)
    except Enough:
        pass


def _read_text(source: Source) -> Reader[None]:
    while True:
        if source.left:
            text = source.take(len(source.text))
            yield Part(source.position, content=text)
        if not (yield from source.more()):
            return


def _read_between(source: Source, written: CallFormat, calls: Calls) -> Reader[None]:
    """Text, calls, text, ..."""
    while True:
        found = [at for sign in written.openings if (at := source.text.find(sign, source.at)) >= 0]
        end = min(found) if found else source.certain(written.openings)
        if not found and source.is_ended:
            end = len(source.text)
        if end > source.at:
            text = source.take(end)
            yield Part(source.position, content=text)
        if found:
            yield from _read_calls(source, written, calls, written.openings)
        elif not (yield from source.more()):
            return


def _read_start(source: Source, written: CallFormat, calls: Calls) -> Reader[None]:
    source.mark()
    yield from skip(source)
    for sign in written.starts:
        is_character = len(sign) == 1
        if is_character and source.left.startswith(sign):
            break
        if not is_character and (yield from follows(source, sign)):
            break
    else:
        source.back()
        return
    source.back()
    yield from skip(source)
    signs = tuple(sign for sign in written.starts if len(sign) > 1)
    yield from _read_calls(source, written, calls, signs)


def _read_calls(
    source: Source, written: CallFormat, calls: Calls, signs: tuple[str, ...]
) -> Reader[None]:
    """Calls behind a sign; where they are none, the sign is text."""
    source.mark()
    first, size = source.position, 0
    for sign in signs:
        if (yield from follows(source, sign)):
            size = len(sign)
            break
    try:
        yield from written.read(source, calls)
    except NotACall:
        source.back()
        if source.position == first and size:
            text = source.take(source.at + size)
            yield Part(source.position, content=text)
        return
    source.keep()
    yield from skip(source)
