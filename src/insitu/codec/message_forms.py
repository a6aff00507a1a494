"""Messages in the forms that chat templates expect them in.

Not here: rendering, refusing (``chat``).

Always true: the forms hold the same texts of the caller; which one a template is given depends on
the template and the messages alone.

Templates differ in three things. Content is a text to most, a list of parts to some, who would not
show a text at all. Where a message only calls tools, content is null to some and "" to others. A
call's arguments are a mapping to most, JSON text to some, who would show a mapping in Python's
spelling. What a template does with a made-up message tells which it is.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from insitu.codec.template_values import TemplateFault, TemplateLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from insitu.types import Message, ToolCall

# Letters and digits that no template spells itself.
_NEEDLE = "kq7zneedle"


class Form(NamedTuple):
    """How messages are written; the first form is the usual one."""

    null_is_empty: bool = False
    arguments_are_text: bool = False


class MessageForms:
    """What one template expects; ``show`` renders message mappings to text, or faults."""

    def __init__(self, show: Callable[[list[dict[str, Any]]], str]) -> None:
        self._show = show
        self._parts: dict[str, bool] = {}
        self._text_arguments: bool | None = None

    def of(self, messages: Sequence[Message]) -> Iterator[list[dict[str, Any]]]:
        """The messages in the form expected, then in others, to be tried where that one faults."""
        calls = any(message.tool_calls for message in messages)
        nulls = any(message.content is None for message in messages)
        wants_text = calls and self._wants_text_arguments()
        tried = set()
        for empty in (False, nulls):
            for text in (wants_text, calls and not wants_text):
                form = Form(empty, text)
                if form not in tried:
                    tried.add(form)
                    yield [self._message(message, form) for message in messages]

    def _message(self, message: Message, form: Form) -> dict[str, Any]:
        """A message as templates know it; what is absent has no key."""
        content: Any = message.content
        if content is None and form.null_is_empty:
            content = ""
        if content is not None and self._wants_parts(message.role):
            content = [{"type": "text", "text": content}]
        known: dict[str, Any] = {"role": message.role, "content": content}
        if message.name is not None:
            known["name"] = message.name
        if message.reasoning_content is not None:
            known["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            known["tool_calls"] = [
                _tool_call(call, is_text=form.arguments_are_text) for call in message.tool_calls
            ]
        if message.tool_call_id is not None:
            known["tool_call_id"] = message.tool_call_id
        return known

    def _wants_parts(self, role: str) -> bool:
        """Whether content of a role shows only as a list of parts."""
        known = self._parts.get(role)
        if known is None:
            parts = [{"type": "text", "text": _NEEDLE}]
            known = not self._shows(_NEEDLE, _around(role, _NEEDLE)) and self._shows(
                _NEEDLE, _around(role, parts)
            )
            self._parts[role] = known
        return known

    def _wants_text_arguments(self) -> bool:
        """Whether a call's arguments, given as a mapping, show as Python spells them."""
        if self._text_arguments is None:
            call = _made_up_call({_NEEDLE: "1"})
            self._text_arguments = self._shows(
                str({_NEEDLE: "1"}),
                [_user(), {"role": "assistant", "content": "", **call}, _user()],
            )
        return self._text_arguments

    def _shows(self, text: str, messages: list[dict[str, Any]]) -> bool:
        try:
            return text in self._show(messages)
        except TemplateLimitError:
            raise  # so would the conversation's own rendering, later
        except TemplateFault:
            return False


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "x"}


def _made_up_call(arguments: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"tool_calls": [{"id": "call00000", "type": "function", "function": function}]}


def _around(role: str, content: Any) -> list[dict[str, Any]]:
    """A conversation with one message of a role in it."""
    message = {"role": role, "content": content}
    if role == "system":
        return [message, _user()]
    if role == "assistant":
        return [_user(), message, _user()]
    if role == "tool":
        calling = {"role": "assistant", "content": "", **_made_up_call({})}
        return [_user(), calling, {**message, "name": "f", "tool_call_id": "call00000"}]
    return [message]


def _tool_call(call: ToolCall, *, is_text: bool) -> dict[str, Any]:
    arguments = call.arguments if is_text else _arguments(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(text: str) -> Any:
    """Arguments as a mapping where they are a JSON object: templates write them out again."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
