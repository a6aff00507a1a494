"""Ordinary conversations made at random, and Jinja2's own sandbox as Hugging Face sets it up.

Always true: the same seed gives the same conversations.
"""

from __future__ import annotations

import json
import random
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from insitu.types import Message, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

TODAY = "2026-01-31"
WORDS = [
    "hello", "world", "Grüße", "日本", "😀", "x = 1", "\n", "\n\n", "  two", "it's", "7", "2026",
    "<b>&amp;</b>", '"quoted"', "back\\slash", "{{ braces }}", "{% raw %}", "tab\t", "e\u0301", "",
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather "now" — in a city',
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "enum": ["Köln", "東京"]},
                "n": {"minimum": 0.5},
            },
            "required": ["city"],
            "additionalProperties": False,
            "default": None,
        },
    },
}


def words(rng: random.Random) -> str:
    """Some text."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 6)))


def conversation(rng: random.Random) -> tuple[list[Message], list[dict[str, Any]]]:
    """Messages and tools."""
    messages = [Message("system", words(rng))] if rng.random() < 0.5 else []
    tools = [TOOL] * rng.randint(1, 2) if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        messages.append(Message("user", words(rng)))
        if tools and rng.random() < 0.6:
            arguments = json.dumps({"city": words(rng), "n": [1, 2.5, None, True]})
            calls = tuple(
                ToolCall(f"call_{i}", "get_weather", arguments) for i in range(rng.randint(1, 2))
            )
            content = words(rng) if rng.random() < 0.5 else None
            messages.append(Message("assistant", content, tool_calls=calls))
            messages += [Message("tool", words(rng), tool_call_id=call.id) for call in calls]
        messages.append(Message("assistant", words(rng)))
    if rng.random() < 0.8:
        messages.pop()
    return messages, tools


def conversations(count: int, seed: int = 7) -> list[tuple[list[Message], list[dict[str, Any]]]]:
    """Several."""
    rng = random.Random(seed)  # noqa: S311 - the same each time is what is wanted
    return [conversation(rng) for _ in range(count)]


def as_template_sees(message: Message) -> dict[str, Any]:
    """A message as Hugging Face hands it to a template."""
    known: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        known["tool_calls"] = [
            {"id": call.id, "type": "function",
             "function": {"name": call.name, "arguments": json.loads(call.arguments)}}
            for call in message.tool_calls
        ]  # fmt: skip
    if message.tool_call_id is not None:
        known["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        known["name"] = message.name
    if message.reasoning_content is not None:
        known["reasoning_content"] = message.reasoning_content
    return known


class Generation(Extension):
    """The tag that marks what a model wrote."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own way

    def parse(self, parser: Any) -> Any:
        """Its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@cache
def sandboxed(source: str) -> jinja2.Template:
    """A template of Jinja2's sandbox."""

    def tojson(x: Any, ensure_ascii: bool = False, indent: int | None = None,
               separators: Any = None, sort_keys: bool = False) -> str:  # fmt: skip
        return json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.globals["strftime_now"] = date.fromisoformat(TODAY).strftime
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    return environment.from_string(source)


def oracle(
    source: str,
    messages: Sequence[Message] = (),
    tools: Sequence[dict[str, Any]] = (),
    **variables: Any,
) -> str:
    """What Jinja2's sandbox renders."""
    return sandboxed(source).render(
        messages=[as_template_sees(message) for message in messages],
        tools=list(tools) or None,
        documents=None,
        **variables,
    )
