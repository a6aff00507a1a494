"""What a program gives to ``LLM``, checked: prompts, messages, and params of each.

Not here: what a request may hold (``preparing`` refuses that by name).

Always true: what has another type than it must is a ``TypeError`` that says what is wanted.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from insitu.sampling_params import SamplingParams
from insitu.types import Guide, Message, Reasoning, ToolCall, ToolChoice

_MESSAGE_KEYS = tuple(field.name for field in fields(Message))


def prompts_of(prompts: Any) -> list[str | tuple[int, ...]]:
    """Texts, or ids of each."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts are a str or a list of them, not {type(prompts).__name__}")
    return [one if isinstance(one, str) else _ids_of(one) for one in prompts]


def _ids_of(prompt: Any) -> tuple[int, ...]:
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise TypeError(
            f"a prompt is a str or a list of token ids, as in [[1, 2]], not {type(prompt).__name__}"
        )
    ids = []
    for one in prompt:
        if isinstance(one, bool) or not hasattr(one, "__index__"):
            raise TypeError(f"a token id is an int, not {type(one).__name__}")
        ids.append(operator.index(one))
    return tuple(ids)


def params_of_each(params: Any, num_prompts: int) -> list[SamplingParams]:
    """One set of params for each prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    each = list(params) if isinstance(params, Iterable) else [params]
    for one in each if not isinstance(params, Mapping) else [params]:
        if not isinstance(one, SamplingParams):
            raise TypeError(f"params are SamplingParams, not {type(one).__name__}")
    if len(each) != num_prompts:
        raise ValueError(f"{len(each)} SamplingParams for {num_prompts} prompts")
    return each


def messages_of(messages: Any) -> tuple[Message, ...]:
    """Messages, given as such or as mappings."""
    if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
        raise TypeError(f"messages are a list, not {type(messages).__name__}")
    return tuple(one if isinstance(one, Message) else _message(one) for one in messages)


def _message(given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise TypeError(f"a message is a Message or a mapping, not {type(given).__name__}")
    values = dict(given)
    unknown = [key for key in values if key not in _MESSAGE_KEYS]
    if unknown or "role" not in values:
        what = f"has no {unknown[0]!r}" if unknown else "needs a role"
        raise TypeError(f"a message {what} (known: {', '.join(_MESSAGE_KEYS)})")
    values.setdefault("content", None)
    values["tool_calls"] = tuple(map(_tool_call, values.get("tool_calls") or ()))
    return Message(**values)


def _tool_call(given: Any) -> ToolCall:
    """A call, as such or in OpenAI's form."""
    if isinstance(given, ToolCall):
        return given
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping):
        raise TypeError("a tool call is a ToolCall, or has an id and a function")
    call_id, name, arguments = given.get("id"), function.get("name"), function.get("arguments")
    if not (isinstance(call_id, str) and isinstance(name, str) and isinstance(arguments, str)):
        raise TypeError("a tool call's id, name and arguments are texts")
    return ToolCall(call_id, name, arguments)


class ChatWords(TypedDict, total=False):
    """What a chat may be given beside messages."""

    tools: Sequence[Mapping[str, Any]]
    tool_choice: ToolChoice
    guide: Guide | None
    reasoning: Reasoning


def chat_words(words: ChatWords) -> dict[str, Any]:
    """The same, as fields of a ``Request``."""
    return {**words, "tools": mappings_of(words.get("tools", ()))}


def mappings_of(tools: Sequence[Any]) -> tuple[Mapping[str, Any], ...]:
    """Tools, each a mapping."""
    for one in tools:
        if not isinstance(one, Mapping):
            raise TypeError(f"a tool is a mapping, not {type(one).__name__}")
    return tuple(tools)
