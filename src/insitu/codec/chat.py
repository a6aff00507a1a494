"""Conversations to typed prompts, through the model's own chat template.

Not here: the template language (``template``), ids (``tokenizer``).

Always true: everything a caller sent (contents, roles, names, tools, arguments, results, template
kwargs) is the caller's text in the prompt. Messages are handed to the template as they are, none
merged. A template that raises is a ``Refusal`` with the text it raised.

Prefill: a last message of the assistant is closed by most templates like any other. To have the
model go on with it, render with ``continue_final_message``: the prompt then ends with that message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.codec.message_forms import MessageForms
from insitu.codec.template import Template, TypedText
from insitu.codec.template_files import DEFAULT, read_templates
from insitu.codec.template_values import TemplateFault, TemplateLimitError, TemplateRaised
from insitu.refusal import Refusal
from insitu.types import is_template_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Message
    from insitu.weights.tensors import TensorSource

# A kwarg that names one of several templates, and the one that conversations with tools get.
_NAME_KWARG = "template_name"
_WITH_TOOLS = "tool_use"


def load_chat_template(source: TensorSource, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat templates of a model file or folder, which may have none."""
    return ChatTemplate(read_templates(source), tokenizer.special_texts)


class ChatTemplate:
    """Renders conversations; without a template it refuses them and says so.

    Of several templates a conversation with tools gets ``tool_use``, others ``default``; the kwarg
    ``template_name`` asks for another.
    """

    def __init__(
        self, templates: Mapping[str, Template] | Template, special_texts: Mapping[str, str]
    ) -> None:
        named = {DEFAULT: templates} if isinstance(templates, Template) else templates
        self._templates = {name: _Named(named[name], special_texts) for name in named}

    @property
    def is_present(self) -> bool:
        """Whether the model file has a chat template."""
        return bool(self._templates)

    def _chosen(self, kwargs: Mapping[str, Any], *, has_tools: bool) -> _Named:
        if not self._templates:
            message = "This model has no chat template. Use completions, or another model."
            raise Refusal(message, param="messages", code="no_chat_template")
        asked = kwargs.get(_NAME_KWARG)
        if len(self._templates) == 1 and asked is None:
            return next(iter(self._templates.values()))
        wanted = _WITH_TOOLS if has_tools and _WITH_TOOLS in self._templates else DEFAULT
        wanted = wanted if asked is None else asked
        if not isinstance(wanted, str) or wanted not in self._templates:
            where = f"chat_template_kwargs.{_NAME_KWARG}"
            known = ", ".join(sorted(self._templates))
            message = f"{where} must be one of this model's chat templates: {known}."
            raise Refusal(message, param=where, code="invalid_value")
        return self._templates[wanted]

    @property
    def source(self) -> str:
        """The text of the template, or of all there are; empty without one."""
        return "\n".join(named.template.source for named in self._templates.values())

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads, or any of them."""
        return frozenset().union(*(named.template.variables for named in self._templates.values()))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> TypedText:
        """The prompt of a conversation.

        A template that asks for the date gets it from the kwarg ``today`` ("2026-01-31"): a prompt
        depends on the request alone, never on the clock.
        """
        kwargs = kwargs or {}
        template = self._chosen(kwargs, has_tools=bool(tools))
        today = _checked(kwargs)
        values: dict[str, Any] = {
            **kwargs,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            typed = template.render(messages, values, today)
        except TemplateRaised as raised:
            text = str(raised) or "The chat template refuses these messages."
            raise Refusal(text, param="messages", code="chat_template_raised") from raised
        except TemplateLimitError as limit:
            message = f"These messages go beyond the chat template's limits: {limit}."
            raise Refusal(message, param="messages", code="chat_template_limit") from limit
        except TemplateFault as fault:
            message = f"The chat template cannot render these messages: {fault}."
            raise Refusal(message, param="messages", code="chat_template_fault") from fault
        return _without_end(typed, messages) if continue_final_message else typed

    def unread(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Paths of what a caller gave and the template never mentions: it is not in the prompt."""
        template = self._chosen(kwargs or {}, has_tools=bool(tools)).template
        variables, attributes = template.variables, template.attributes
        unread = ["tools"] if tools and "tools" not in variables else []
        for name in kwargs or {}:
            is_date = name == "today" and "strftime_now" in variables
            if name not in variables and not is_date and name != _NAME_KWARG:
                unread.append(f"chat_template_kwargs.{name}")
        for key in ("name", "tool_calls", "reasoning_content"):
            given = [index for index, message in enumerate(messages) if getattr(message, key)]
            if given and key not in attributes:
                unread.append(f"messages[{given[0]}].{key}")
        return unread


class _Named:
    """One template, and the form it wants messages in."""

    def __init__(self, template: Template, special_texts: Mapping[str, str]) -> None:
        self.template = template
        self._special_texts = special_texts
        self._forms = MessageForms(self._shown)

    def render(
        self, messages: Sequence[Message], values: Mapping[str, Any], today: str | None
    ) -> TypedText:
        """The prompt, in the first form of the messages that makes one."""
        first: TemplateFault | None = None
        for written in self._forms.of(messages):
            try:
                return self.template.render(
                    {**values, "messages": written}, self._special_texts, today
                )
            except (TemplateRaised, TemplateLimitError):
                raise
            except TemplateFault as fault:
                first = first or fault
        assert first is not None
        raise first

    def _shown(self, messages: list[dict[str, Any]]) -> str:
        values = {"messages": messages, "tools": None, "documents": None}
        return self.template.render(
            {**values, "add_generation_prompt": True}, self._special_texts, "2026-01-31"
        ).text


def _checked(kwargs: Mapping[str, Any]) -> str | None:
    """Refuse names a caller may not set; the date, where there is one."""
    for name in kwargs:
        if not isinstance(name, str) or not is_template_name(name):
            where = f"chat_template_kwargs.{str(name)[:80]}"
            raise Refusal(f"{where} may not be set.", param=where, code="reserved_name")
    today = kwargs.get("today")
    if today is None:
        return None
    try:
        from datetime import date  # noqa: PLC0415 - only where a date is given

        return date.fromisoformat(today).isoformat()
    except (TypeError, ValueError) as error:
        where = "chat_template_kwargs.today"
        message = f"{where} must be a date such as 2026-01-31."
        raise Refusal(message, param=where, code="invalid_value") from error


def _without_end(typed: TypedText, messages: Sequence[Message]) -> TypedText:
    """The prompt up to the end of the last message's content, which the caller wrote."""
    content = (messages[-1].content or "").strip() if messages else ""
    text = typed.text
    start = text.rfind(content)
    if not content or start < 0 or messages[-1].role != "assistant":
        message = "Only a last assistant message with content can be continued."
        raise Refusal(message, param="messages", code="nothing_to_continue")
    left = start + len(content)
    pieces = []
    for piece, origin in typed.pieces:
        pieces.append((piece[:left], origin))
        left -= len(piece)
        if left <= 0:
            break
    return TypedText(tuple(pieces))
