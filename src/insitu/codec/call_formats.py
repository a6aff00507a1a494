"""How the families write calls, and how each is read.

Not here: choosing one (``tools``). Always true: a reader stands behind the sign that opens its
calls, and reads as many as follow; what turns out to be none raises ``NotACall``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.codec.calls import MAX_HELD_CHARS, NotACall, read_arguments, read_object
from insitu.codec.pythonic import calls_of
from insitu.codec.reading import SPACE, follows, skip, until

if TYPE_CHECKING:
    from insitu.codec.calls import Calls
    from insitu.codec.reading import Reader, Source

_MAX_NAME_CHARS = 256
_NAME_ENDS = ("{", "[", *SPACE)


def read_objects(source: Source, calls: Calls) -> Reader[None]:
    """One object, several with commas or semicolons between, or a list of them."""
    yield from skip(source)
    is_list = yield from follows(source, "[")
    while True:
        yield from skip(source)
        yield from read_object(source, calls)
        source.mark()
        yield from skip(source)
        if (yield from follows(source, ",")) or (yield from follows(source, ";")):
            continue
        if is_list:
            yield from follows(source, "]")
        return


def read_tagged(source: Source, calls: Calls) -> Reader[None]:
    """``<tool_call>{...}</tool_call>``, or with a function and parameters in tags inside."""
    yield from skip(source)
    if (yield from follows(source, "<function=")):
        yield from _read_function(source, calls)
    else:
        yield from read_objects(source, calls)
    yield from skip(source)
    yield from follows(source, "</tool_call>")


def _read_function(source: Source, calls: Calls) -> Reader[None]:
    """``name>`` ``<parameter=key>value</parameter>`` ... ``</function>``."""
    head = yield from until(source, (">",), _MAX_NAME_CHARS)
    if head is None or head[0] not in calls.tools:
        raise NotACall
    name, arguments = head[0], {}
    while True:
        yield from skip(source)
        if not (yield from follows(source, "<parameter=")):
            break
        key = yield from until(source, (">",), _MAX_NAME_CHARS)
        value = yield from until(source, ("</parameter>",), MAX_HELD_CHARS)
        if key is None or value is None:
            raise NotACall
        text = value[0].removeprefix("\n").removesuffix("\n")
        arguments[key[0]] = _typed(text, calls.tools[name], key[0])
    if not (yield from follows(source, "</function>")):
        raise NotACall
    yield from calls.whole(source, name, json.dumps(arguments, ensure_ascii=False))


def _typed(text: str, schema: Any, key: str) -> Any:
    """A parameter's text as the value that its schema wants: text where it may be text."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    wanted = properties.get(key) if isinstance(properties, dict) else None
    kinds = wanted.get("type") if isinstance(wanted, dict) else None
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_mistral(source: Source, calls: Calls) -> Reader[None]:
    """A list of objects, or a name and its arguments, with ``[ARGS]`` between in newer models."""
    yield from skip(source)
    if source.left[:1] in ("[", "{"):
        yield from read_objects(source, calls)
        return
    while True:
        found = yield from until(source, _NAME_ENDS, _MAX_NAME_CHARS)
        if found is None:
            raise NotACall
        source.at -= len(found[1])
        for sign in ("[CALL_ID]", "[ARGS]"):
            if (yield from follows(source, sign)) and sign == "[CALL_ID]":
                yield from until(source, ("[",), _MAX_NAME_CHARS)
                source.at -= 1
        yield from _begin_arguments(source, calls, found[0])
        source.mark()
        if not (yield from follows(source, "[TOOL_CALLS]")):
            return


def read_deepseek(source: Source, calls: Calls) -> Reader[None]:
    """A sign around each call; the name alone, or after ``function`` and before fenced JSON."""
    sign = "<｜tool▁call▁begin｜>"
    yield from skip(source)
    if not (yield from follows(source, sign)):
        raise NotACall
    while True:
        head = yield from until(source, ("<｜tool▁sep｜>",), _MAX_NAME_CHARS)
        if head is None:
            raise NotACall
        name = head[0]
        if name == "function":
            line = yield from until(source, ("\n",), _MAX_NAME_CHARS)
            if line is None or not (yield from follows(source, "```json\n")):
                raise NotACall
            name = line[0]
        yield from _begin_arguments(source, calls, name.strip())
        yield from skip(source)
        yield from follows(source, "```")
        yield from follows(source, "<｜tool▁call▁end｜>")
        source.mark()
        yield from skip(source)
        if not (yield from follows(source, sign)):
            break
    yield from follows(source, "<｜tool▁calls▁end｜>")


def _begin_arguments(source: Source, calls: Calls, name: str) -> Reader[None]:
    if not (yield from skip(source)) or source.text[source.at] != "{":
        raise NotACall
    yield calls.begin(source, name)
    yield from read_arguments(source, calls)


def read_pythonic(source: Source, calls: Calls) -> Reader[None]:
    """A list of calls as Python writes them: ``[f(a=1), g()]``."""
    yield from _read_python(source, calls, ("]",))
    yield from skip(source)
    yield from follows(source, "<|python_end|>")


def read_fenced(source: Source, calls: Calls) -> Reader[None]:
    """The same in a fenced block."""
    yield from _read_python(source, calls, ("```",))


def _read_python(source: Source, calls: Calls, ends: tuple[str, ...]) -> Reader[None]:
    """Text up to an end at which it is a list of calls."""
    head = yield from until(source, ("(",), _MAX_NAME_CHARS)
    if head is None or head[0].lstrip(SPACE + "[") not in calls.tools:
        raise NotACall
    text = "".join(head)
    while len(text) <= MAX_HELD_CHARS:
        found = yield from until(source, ends, MAX_HELD_CHARS)
        if found is None:
            break
        text += found[0] + ("]" if found[1] == "]" else "")
        made = calls_of(text)
        if made is not None:
            if not all(name in calls.tools for name, _ in made):
                break
            for name, arguments in made:
                dumped = json.dumps(arguments, ensure_ascii=False)
                yield from calls.whole(source, name, dumped)
            return
        text += "" if found[1] == "]" else found[1]
    raise NotACall
