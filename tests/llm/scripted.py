"""Models that say a script, a token each piece, then end; their template speaks of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiny_model import END_TOKEN, Vocabulary, write_chain_gguf

from insitu.types import Message, Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Shows tools, and both ways of reasoning: opened and closed by the template, or left to the model.
TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}"
    "{% elif enable_thinking is defined %}{{ '<think>\\n\\n</think>\\n' }}{% endif %}{% endif %}"
    "{# calls are written as <tool_call> #}"
)


def write_script(path: Path, pieces: Sequence[str]) -> Path:
    """A model that answers any chat of ``TEMPLATE`` with these pieces, all different."""
    assert len(set(pieces)) == len(pieces)
    words = Vocabulary(tuple(pieces))
    ids = [words.id_of(piece) for piece in pieces]
    after = dict(
        zip([words.id_of_byte(ord("\n")), *ids], [*ids, words.id_of(END_TOKEN)], strict=True)
    )
    write_chain_gguf(
        path,
        after,
        extra_tokens=tuple(pieces),
        pairs={"tokenizer.chat_template": TEMPLATE},
        max_model_len=2048,
    )
    return path


def chat(name: str = "r", text: str = "hello", **fields: Any) -> Request:
    """A chat."""
    return Request(name, "default", messages=(Message("user", text),), **fields)


def tool(name: str, strict: bool | None = None, **properties: Any) -> dict[str, Any]:
    """A tool whose parameters are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    function: dict[str, Any] = {"name": name, "parameters": parameters}
    return {
        "type": "function",
        "function": function | ({} if strict is None else {"strict": strict}),
    }
