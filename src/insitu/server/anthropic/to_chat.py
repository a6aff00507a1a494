"""A Messages body as a chat's fields: one table, and blocks sorted into messages.

Always true: a tool's answer becomes a message of its own, in the place where its block stood.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.anthropic.schema import (
    AssistantMessage,
    CountTokensRequest,
    MessagesRequest,
    NamedTool,
    TextBlock,
    ThinkingBlock,
    ThinkingOn,
    ToolResultBlock,
)
from insitu.server.translated import Translation

if TYPE_CHECKING:
    from insitu.server.anthropic.schema import CustomTool, OutputConfig, UserMessage
    from insitu.server.lenience import Lenience

# A chat's fields by the names they have here.
NAMES = {
    "messages": "messages",  # and nothing below: blocks are no messages
    "stop": "stop_sequences",
    "max_reasoning_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
_MODES = {"auto": "auto", "any": "required", "none": "none"}


def prompt_words(wire: CountTokensRequest, lenience: Lenience) -> dict[str, Any]:
    """The fields of a chat that make its prompt."""
    config, thinking = wire.output_config, wire.thinking
    effort = config.effort if config else None
    choice = wire.tool_choice
    is_serial = choice is not None and choice.disable_parallel_tool_use
    return {
        "model": wire.model,
        "messages": _messages(wire, lenience),
        "tools": None if wire.tools is None else [_tool(one) for one in wire.tools],
        "tool_choice": _tool_choice(wire),
        "parallel_tool_calls": False if is_serial else None,
        "reasoning_effort": "none" if thinking and thinking.type == "disabled" else effort,
        "max_reasoning_tokens": (
            thinking.budget_tokens if isinstance(thinking, ThinkingOn) else None
        ),
        "response_format": _response_format(config),
    }


def to_chat(wire: MessagesRequest, lenience: Lenience) -> dict[str, Any]:
    """The chat that a body asks for; None where it says nothing."""
    return {
        **prompt_words(wire, lenience),
        "max_tokens": wire.max_tokens,
        "temperature": wire.temperature,
        "top_p": wire.top_p,
        "top_k": wire.top_k,
        "stop": wire.stop_sequences,
        "stream": wire.stream,
    }


def _messages(wire: CountTokensRequest, lenience: Lenience) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if wire.system is not None:
        messages.append({"role": "system", "content": _text(wire.system)})
    for index, message in enumerate(wire.messages):
        if isinstance(message, AssistantMessage):
            messages.append(_assistant(message))
        else:
            messages += _user(message, f"messages[{index}]", lenience)
    if isinstance(wire.messages[-1], AssistantMessage):
        param = f"messages[{len(wire.messages) - 1}].role"
        message_text = "An answer cannot be begun for the model: the last message must be a user's."
        raise Refusal(message_text, param=param, code="unsupported_parameter")
    return messages


def _text(content: str | list[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block.text for block in content)


def _user(message: UserMessage, path: str, lenience: Lenience) -> list[dict[str, Any]]:
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    messages: list[dict[str, Any]] = []
    for index, block in enumerate(message.content):
        if isinstance(block, ToolResultBlock):
            if block.is_error:
                lenience.warn(f"{path}.content[{index}].is_error: the model sees the text alone.")
            content = _text(block.content)
            answer = {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
            messages.append(answer)
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += block.text
        else:
            messages.append({"role": "user", "content": block.text})
    return messages


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    if isinstance(message.content, str):
        return {"role": "assistant", "content": message.content}
    said: dict[str, Any] = {"role": "assistant"}
    for block in message.content:
        if isinstance(block, TextBlock):
            said["content"] = said.get("content", "") + block.text
        elif isinstance(block, ThinkingBlock):
            said["reasoning_content"] = said.get("reasoning_content", "") + block.thinking
        else:
            arguments = json.dumps(block.input, ensure_ascii=False)
            call = {"name": block.name, "arguments": arguments}
            calls = said.setdefault("tool_calls", [])
            calls.append({"id": block.id, "type": "function", "function": call})
    return said


def _tool(tool: CustomTool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _response_format(config: OutputConfig | None) -> dict[str, Any] | None:
    if config is None or config.format is None:
        return None
    wanted = {"name": "answer", "schema": config.format.schema_, "strict": True}
    return {"type": "json_schema", "json_schema": wanted}


def _tool_choice(wire: CountTokensRequest) -> Any:
    choice = wire.tool_choice
    if isinstance(choice, NamedTool):
        return {"type": "function", "function": {"name": choice.name}}
    return None if choice is None else _MODES[choice.type]


_WITHOUT = frozenset(
    {
        "n", "functions", "function_call", "modalities", "return_token_ids", "stream_options",
        "add_generation_prompt", "max_completion_tokens", "logprobs", "top_logprobs", "user",
        "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
MESSAGES = Translation(MessagesRequest, to_chat, NAMES, _WITHOUT)
COUNT_TOKENS = Translation(CountTokensRequest, prompt_words, NAMES, _WITHOUT)
