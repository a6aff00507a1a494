"""A Responses body as a chat's fields: one table, and items joined to messages.

Always true: reasoning and calls that stand side by side become one assistant's message, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from insitu.server.responses.schema import (
    LOGPROBS,
    FunctionCallItem,
    FunctionCallOutput,
    InputMessage,
    NamedTool,
    ReasoningItem,
    ResponsesRequest,
    SchemaFormat,
)
from insitu.server.translated import Translation

if TYPE_CHECKING:
    from insitu.server.lenience import Lenience
    from insitu.server.responses.schema import (
        FunctionTool,
        InputText,
        OutputText,
        TextConfig,
    )

# A chat's fields by the names they have here.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
    "reasoning_effort": "reasoning.effort",
    "logprobs": "include",
}


def to_chat(wire: ResponsesRequest, _: Lenience) -> dict[str, Any]:
    """The chat that a body asks for; None where it says nothing."""
    has_logprobs = LOGPROBS in (wire.include or ())
    return {
        "model": wire.model,
        "messages": _messages(wire),
        "max_completion_tokens": wire.max_output_tokens,
        "temperature": wire.temperature,
        "top_p": wire.top_p,
        "logprobs": True if has_logprobs else None,
        "top_logprobs": wire.top_logprobs or (0 if has_logprobs else None),
        "stream": wire.stream,
        "response_format": _response_format(wire.text),
        "verbosity": wire.text.verbosity if wire.text else None,
        "reasoning_effort": wire.reasoning.effort if wire.reasoning else None,
        "tools": None if wire.tools is None else [_tool(one) for one in wire.tools],
        "tool_choice": _tool_choice(wire),
        "parallel_tool_calls": wire.parallel_tool_calls,
    }


def _messages(wire: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if wire.instructions is not None:
        messages.append({"role": "system", "content": wire.instructions})
    if isinstance(wire.input, str):
        return [*messages, {"role": "user", "content": wire.input}]
    for item in wire.input:
        if isinstance(item, InputMessage):
            _add_message(messages, item)
        elif isinstance(item, FunctionCallOutput):
            content = item.output if isinstance(item.output, str) else _joined(item.output)
            message = {"role": "tool", "tool_call_id": item.call_id, "content": content}
            messages.append(message)
        else:
            _add_to_assistant(_assistant(messages), item)
    return messages


def _add_message(messages: list[dict[str, Any]], item: InputMessage) -> None:
    content = item.content if isinstance(item.content, str) else _joined(item.content)
    last = messages[-1] if messages else {}
    is_begun = item.role == "assistant" and set(last) == {"role", "reasoning_content"}
    if is_begun:  # its reasoning came as an item before it
        last["content"] = content
    else:
        messages.append({"role": item.role, "content": content})


def _add_to_assistant(message: dict[str, Any], item: FunctionCallItem | ReasoningItem) -> None:
    if isinstance(item, ReasoningItem):
        text = "".join(part.text for part in item.content or ())
        message["reasoning_content"] = message.get("reasoning_content", "") + text
        return
    call = {"name": item.name, "arguments": item.arguments}
    calls = message.setdefault("tool_calls", [])
    calls.append({"id": item.call_id, "type": "function", "function": call})


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The assistant's message that an item belongs to: the last one, or a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _joined(parts: list[InputText] | list[InputText | OutputText]) -> str:
    return "".join(part.text for part in parts)


def _response_format(text: TextConfig | None) -> dict[str, Any] | None:
    if text is None or text.format is None:
        return None
    if not isinstance(text.format, SchemaFormat):
        return {"type": text.format.type}
    wanted = text.format.model_dump(by_alias=True, exclude={"type"}, exclude_none=True)
    return {"type": "json_schema", "json_schema": wanted}


def _tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": tool.model_dump(exclude={"type"}, exclude_none=True)}


def _tool_choice(wire: ResponsesRequest) -> Any:
    choice = wire.tool_choice
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    # Without tools there is nothing to choose, and "auto" says just that.
    return None if choice == "auto" and not wire.tools else choice


RESPONSES = Translation(
    ResponsesRequest,
    to_chat,
    NAMES,
    without=frozenset(
        {
            "n",
            "functions",
            "function_call",
            "modalities",
            "return_token_ids",
            "add_generation_prompt",
        }
    ),
)
