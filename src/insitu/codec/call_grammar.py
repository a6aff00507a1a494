"""Grammars in which a model's tool calls are written: each call one of the tools, its arguments
valid against that tool's schema.

Not here: reading calls (``call_formats``), compiling (``grammar``). Always true: whatever such a
grammar accepts is read back as those calls by the format's own reader.
"""

from __future__ import annotations

import json
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from insitu.codec.grammar import JSON_OPTIONS, literal, with_whole_counts
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.codec.tokenizer import Tokenizer
    from insitu.codec.tools import CallFormat

LINE = "\n"


class CallGrammar:
    """Writes grammars for one model's format."""

    def __init__(self, written: CallFormat, tokenizer: Tokenizer, template: str) -> None:
        self._format = written
        self._tokenizer = tokenizer
        self._template = template

    @property
    def has_openings(self) -> bool:
        """Whether signs stand before calls, which text can do without."""
        return bool(self._format.openings)

    def calls(self, tools: Mapping[str, Any], *, is_parallel: bool) -> list[str]:
        """Rules for one or several calls, ``calls`` the first of them."""
        assert tools
        rules = []
        names = []
        for index, (name, schema) in enumerate(tools.items()):
            rules += self._call(f"call_{index}", name, _object(schema))
            names.append(f"call_{index}")
        opening, between, closing = self._frame()
        rules.append(f"one: {' | '.join(names)}")
        more = f" ({between} one)*" if is_parallel else ""
        return [f"calls: {opening} one{more} {closing}", *rules]

    def among_text(self, tools: Mapping[str, Any], *, is_parallel: bool) -> list[str]:
        """Rules for text that may hold calls anywhere, ``start`` the first of them."""
        rules = self.calls(tools, is_parallel=is_parallel)
        if not self._format.openings:
            return ["start: TEXT | calls", *_plain_text(self._format.starts), *rules]
        # What opens a call ends the text before it, and nothing else can follow it.
        opening = self._format.openings[0]
        control = self._control(opening)
        again = "*" if is_parallel else "?"
        head = f"before: TEXT {control}" if control else f"before[lazy]: TEXT {literal(opening)}"
        rest = rules[0].removeprefix(f"calls: {self._sign(opening)}")
        return [
            f"start: (before behind){again} TEXT",
            head,
            "TEXT: /(?s:.*)/" if control else _without((opening,)),
            f"behind: {rest}",
            *rules[1:],
        ]

    def no_calls(self) -> list[str]:
        """Rules for text in which no call is opened."""
        signs = tuple(one for one in self._format.openings if not self._control(one))
        return ["start: TEXT", _without(signs)]

    def _frame(self) -> tuple[str, str, str]:
        """What opens the calls, stands between two, and closes them."""
        name, sign, text = self._format.name, self._sign, literal
        before = [sign(one) for one in self._format.openings[:1]]
        if name == "hermes":
            opening, closing = f"{before[0]} {text(LINE)}", f"{text(LINE)} {sign('</tool_call>')}"
            return opening, f"{closing} {text(LINE)} {opening}", closing
        if name == "mistral" and self._has_args_sign:
            return before[0], before[0], ""
        if name == "deepseek":
            between = text(LINE) if self._is_fenced else ""
            return before[0], between, sign("<｜tool▁calls▁end｜>")
        if name == "llama3":
            return "", text("; "), ""
        end = "]\n```" if name == "gemma" else "]"
        return " ".join([*before, text("[")]), text(", "), text(end)

    def _call(self, rule: str, name: str, schema: Any) -> list[str]:
        """Rules for a call of one tool."""
        sign, text = self._sign, literal
        arguments = f"%json {json.dumps(schema)}"
        if self._format.name in ("pythonic", "gemma"):
            return _python_call(rule, name, schema)
        if self._format.name == "mistral" and self._has_args_sign:
            body = f"{text(name)} {sign('[ARGS]')} {arguments}"
        elif self._format.name == "deepseek":
            begin, middle, end = (
                sign(one)
                for one in ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
            )
            if self._is_fenced:
                fence = text(f"{name}\n```json\n")
                kind = text("function")
                body = f"{begin} {kind} {middle} {fence} {arguments} {text(LINE + '```')} {end}"
            else:
                body = f"{begin} {text(name)} {middle} {arguments} {end}"
        else:
            key = "parameters" if self._format.name == "llama3" else "arguments"
            head = '{"name": ' + json.dumps(name, ensure_ascii=False) + f', "{key}": '
            body = f"{text(head)} {arguments} {text('}')}"
        return [f"{rule}: {body}"]

    @property
    def _has_args_sign(self) -> bool:
        return "[ARGS]" in self._template

    @property
    def _is_fenced(self) -> bool:
        return "```json" in self._template

    def _control(self, text: str) -> str | None:
        """A sign that is a control token, as a grammar names it."""
        token_id = self._tokenizer.added_tokens.get(text)
        is_control = token_id is not None and self._tokenizer.is_control(token_id)
        return f"<[{token_id}]>" if is_control else None

    def _sign(self, text: str) -> str:
        """A sign of the format: its token, or its characters where it is none."""
        return self._control(text) or literal(text)


def _object(schema: Any) -> dict[str, Any]:
    """A tool's parameters as the schema of an object."""
    given = with_whole_counts(schema) if isinstance(schema, dict) else {}
    return {"type": "object", **given, "x-guidance": JSON_OPTIONS}


def _without(signs: tuple[str, ...]) -> str:
    """Text in which none of some signs is."""
    parts = ["/(?s:.*)/", *(f"~/(?s:.*){_escaped(sign)}(?s:.*)/" for sign in signs)]
    return f"TEXT: {' & '.join(parts)}"


def _plain_text(starts: tuple[str, ...]) -> list[str]:
    """Text that does not begin like a call."""
    firsts = "".join(_escaped(one) for one in starts if len(one) == 1)
    return [rf"TEXT: /[\s]*([^\s{firsts}](?s:.*))?/"]


def _escaped(text: str) -> str:
    return "".join(one if one.isalnum() else f"\\x{{{ord(one):x}}}" for one in text)


# What a grammar of Python calls can hold a tool's arguments to; and what asks nothing.
_PYTHON_KEYWORDS = frozenset(
    (
        *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
        *("title", "description", "$schema", "$comment", "examples", "default", "x-guidance"),
    )
)


def _python_parameters(name: str, schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parameters of a tool by name, those that are required and not described included."""
    beyond = sorted(set(schema) - _PYTHON_KEYWORDS)
    if beyond or schema["type"] != "object":
        raise _no_python(f"{beyond[0] if beyond else 'type'} of {name}")
    properties, required = schema.get("properties"), _required(schema)
    known = dict(properties) if isinstance(properties, dict) else {}
    known |= {key: {} for key in required if key not in known}
    for key, value in list(known.items()):
        if value is False and key not in required:
            del known[key]
        elif value is False or not key.isidentifier() or iskeyword(key):
            raise _no_python(f"parameter {key} of {name}")
    return {key: value if isinstance(value, dict) else {} for key, value in known.items()}


def _required(schema: dict[str, Any]) -> list[str]:
    """Names that must be given; what is no list of names is the compiler's to refuse."""
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    return [one for one in names if isinstance(one, str)]


def _no_python(what: str) -> Refusal:
    message = f"tools cannot be enforced where calls are written as Python: {what[:80]}."
    return Refusal(message, param="tools", code="invalid_grammar")


def _python_call(rule: str, name: str, schema: dict[str, Any]) -> list[str]:
    """``f(a=1, b="x")``: parameters in the schema's order, those not required may be left out.

    first_0: a (with what may follow, after a comma), or what may come first without a
    """
    items, required = list(_python_parameters(name, schema).items()), _required(schema)
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules = [f"{rule}: {literal(name + '(')} {rule}_first_0 {literal(')')}"]
    for index, (key, value) in enumerate(items):
        written = json.dumps({**shared, **value, "x-guidance": JSON_OPTIONS})
        rules.append(f"{rule}_arg_{index}: {literal(key + '=')} %json {written}")
        after = f"{rule}_next_{index + 1}"
        first = f"{rule}_arg_{index} {after}"
        following = f"{literal(', ')} {first}"
        if key in required:
            rules += [f"{rule}_first_{index}: {first}", f"{rule}_next_{index}: {following}"]
        else:
            rules += [
                f"{rule}_first_{index}: {first} | {rule}_first_{index + 1}",
                f"{rule}_next_{index}: {following} | {after}",
            ]
    size = len(items)
    return [*rules, f'{rule}_first_{size}: ""', f'{rule}_next_{size}: ""']
