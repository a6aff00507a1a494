"""Ollama's bodies as a chat's fields, or a completion's where a prompt is raw: one table.

Always true: an option has the chat's meaning; none has a default of Ollama's that is not written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.ollama.schema import ChatRequest, GenerateRequest
from insitu.server.translated import Translation

if TYPE_CHECKING:
    from insitu.server.lenience import Lenience
    from insitu.server.ollama.schema import ChatMessage, Options

# Options, by the names of a chat's fields.
OPTIONS = {
    "max_tokens": "num_predict",
    "seed": "seed",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "stop": "stop",
}
# A chat's fields by the names they have here.
NAMES = {
    **{ours: f"options.{theirs}" for ours, theirs in OPTIONS.items()},
    "messages": "messages",  # and nothing below: system and prompt are no messages
    "reasoning_effort": "think",
    "response_format": "format",
}


def chat_words(wire: ChatRequest, _: Lenience) -> dict[str, Any]:
    """The chat that a body of /api/chat asks for; None where it says nothing."""
    return {
        **_shared(wire),
        # Without messages nothing is asked but whether the model is there.
        "messages": _messages(wire.messages or []) or [{"role": "user", "content": ""}],
        "tools": [one.model_dump(exclude_none=True) for one in wire.tools or ()] or None,
    }


def generate_words(wire: GenerateRequest, lenience: Lenience) -> dict[str, Any]:
    """The chat that a body of /api/generate asks for; of a raw prompt all but the prompt."""
    if wire.raw:
        _require_plain(wire, lenience)
    messages = [{"role": "user", "content": wire.prompt or ""}]
    if wire.system:
        messages.insert(0, {"role": "system", "content": wire.system})
    return {**_shared(wire), "messages": messages}


def _require_plain(wire: GenerateRequest, lenience: Lenience) -> None:
    for name in ("system", "think", "format"):
        if getattr(wire, name):
            message = f"{name} is not supported where raw is true."
            lenience.leave_out(Refusal(message, param=name, code="unsupported_parameter"))


def _shared(wire: ChatRequest | GenerateRequest) -> dict[str, Any]:
    has_logprobs = bool(wire.logprobs)
    return {
        **_sampling(wire.options),
        "model": wire.model.removesuffix(":latest"),
        "reasoning_effort": _effort(wire.think),
        "response_format": _response_format(wire.format),
        "logprobs": has_logprobs or None,
        "top_logprobs": (wire.top_logprobs or 0) if has_logprobs else wire.top_logprobs,
    }


def _sampling(options: Options | None) -> dict[str, Any]:
    if options is None:
        return {}
    fields = {ours: getattr(options, theirs) for ours, theirs in OPTIONS.items()}
    if options.num_predict in {-1, -2}:
        fields["max_tokens"] = None
    return fields


def _effort(think: bool | str | None) -> str | None:
    if isinstance(think, bool):
        return "high" if think else "none"
    return think


def _response_format(wanted: str | dict[str, Any] | None) -> dict[str, Any] | None:
    if not wanted:
        return None
    if wanted == "json":
        return {"type": "json_object"}
    schema = {"name": "answer", "schema": wanted, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _messages(wires: list[ChatMessage]) -> list[dict[str, Any]]:
    """Messages; calls that have no ids get some, which tools' answers take up in order."""
    waiting: list[tuple[str, str]] = []  # names and ids of calls
    messages: list[dict[str, Any]] = []
    for wire in wires:
        message: dict[str, Any] = {"role": wire.role, "content": wire.content or ""}
        if wire.role == "assistant":
            calls: list[dict[str, Any]] = []
            for call in wire.tool_calls or ():
                call_id = call.id or f"call_{len(messages)}_{len(calls)}"
                waiting.append((call.function.name, call_id))
                arguments = json.dumps(call.function.arguments, ensure_ascii=False)
                function = {"name": call.function.name, "arguments": arguments}
                calls.append({"id": call_id, "type": "function", "function": function})
            if calls:
                message["tool_calls"] = calls
            if wire.thinking:
                message["reasoning_content"] = wire.thinking
        elif wire.role == "tool":
            message["tool_call_id"] = wire.tool_call_id or _answered(waiting, wire.tool_name)
            if wire.tool_name:
                message["name"] = wire.tool_name
        messages.append(message)
    return messages


def _answered(waiting: list[tuple[str, str]], name: str | None) -> str:
    for index, (called, call_id) in enumerate(waiting):
        if name in {None, called}:
            del waiting[index]
            return call_id
    return ""


_WITHOUT = frozenset(
    {
        "n", "functions", "function_call", "modalities", "return_token_ids", "stream_options",
        "add_generation_prompt", "max_completion_tokens", "tool_choice", "user", "metadata",
        "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
CHAT = Translation(ChatRequest, chat_words, NAMES, _WITHOUT)
GENERATE = Translation(GenerateRequest, generate_words, NAMES, _WITHOUT | {"tools"})
