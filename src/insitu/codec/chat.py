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
from insitu.codec.template import Template, TypedText, UnsupportedTemplate
from insitu.codec.template_values import TemplateFault, TemplateLimitError, TemplateRaised
from insitu.refusal import Refusal
from insitu.types import is_template_name
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from insitu.codec.tokenizer import Tokenizer
    from insitu.types import Message
    from insitu.weights.tensors import TensorSource

_GGUF_KEY = "tokenizer.chat_template"


def load_chat_template(source: TensorSource, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a model file or folder, which may have none."""
    where, text = _GGUF_KEY, None
    if source.format == "gguf":
        text = source.metadata.string(_GGUF_KEY, None)
    else:
        where, text = _folder_template(source)
    if not text:
        return ChatTemplate(None, tokenizer.special_texts)
    try:
        return ChatTemplate(Template(text), tokenizer.special_texts)
    except UnsupportedTemplate as error:
        raise UnsupportedModelError(source.path, where, f"chat template {error}") from error


def _folder_template(source: TensorSource) -> tuple[str, str | None]:
    where = "chat_template.jinja"
    raw = source.file(where)
    if raw is not None:
        try:
            return where, raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(source.path, where, "is not valid UTF-8") from error
    name = "tokenizer_config.json"
    raw = source.file(name)
    if raw is None:
        return name, None
    where = f"{name} chat_template"
    text = parse_object(source.path, name, raw).get("chat_template")
    if isinstance(text, list):
        # Several templates by name: the one called default.
        named = {e.get("name"): e.get("template") for e in text if isinstance(e, dict)}
        text = named.get("default")
    if text is not None and not isinstance(text, str):
        raise ModelFileError(source.path, where, "is not a template")
    return where, text


class ChatTemplate:
    """Renders conversations; without a template it refuses them and says so."""

    def __init__(self, template: Template | None, special_texts: Mapping[str, str]) -> None:
        self._template = template
        self._special_texts = special_texts
        self._forms = MessageForms(self._shown)

    @property
    def is_present(self) -> bool:
        """Whether the model file has a chat template."""
        return self._template is not None

    @property
    def source(self) -> str:
        """The template's own text; empty without one."""
        return "" if self._template is None else self._template.source

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads."""
        return frozenset() if self._template is None else self._template.variables

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
        if self._template is None:
            message = "This model has no chat template. Use completions, or another model."
            raise Refusal(message, param="messages", code="no_chat_template")
        kwargs = kwargs or {}
        today = _checked(kwargs)
        values: dict[str, Any] = {
            **kwargs,
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        try:
            typed = self._rendered(messages, values, today)
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

    def _rendered(
        self, messages: Sequence[Message], values: dict[str, Any], today: str | None
    ) -> TypedText:
        assert self._template is not None
        first: TemplateFault | None = None
        for written in self._forms.of(messages):
            try:
                return self._template.render(
                    {**values, "messages": written}, self._special_texts, today
                )
            except (TemplateRaised, TemplateLimitError):
                raise
            except TemplateFault as fault:
                first = first or fault
        assert first is not None
        raise first

    def _shown(self, messages: list[dict[str, Any]]) -> str:
        assert self._template is not None
        values = {"messages": messages, "tools": None, "documents": None}
        return self._template.render(
            {**values, "add_generation_prompt": True}, self._special_texts, "2026-01-31"
        ).text

    def unread(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Paths of what a caller gave and the template never mentions: it is not in the prompt."""
        assert self._template is not None
        variables, attributes = self._template.variables, self._template.attributes
        unread = ["tools"] if tools and "tools" not in variables else []
        for name in kwargs or {}:
            is_date = name == "today" and "strftime_now" in variables
            if name not in variables and not is_date:
                unread.append(f"chat_template_kwargs.{name}")
        for key in ("name", "tool_calls", "reasoning_content"):
            given = [index for index, message in enumerate(messages) if getattr(message, key)]
            if given and key not in attributes:
                unread.append(f"messages[{given[0]}].{key}")
        return unread


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
