"""What a model's answers may hold beside content, and who reads it out of a request's tokens.

Not here: the reading (``codec``) or what is refused (``preparing``). Always true: only a chat is
read so; a prompt's continuation is text, whatever it holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from insitu.codec.answer_text import AnswerText, Speech
from insitu.codec.calls import Calls
from insitu.codec.detokenizer import Detokenizer
from insitu.refusal import Refusal

if TYPE_CHECKING:
    from insitu.codec.reasoning import ReasoningSigns
    from insitu.codec.tokenizer import Tokenizer
    from insitu.codec.tools import CallFormat
    from insitu.types import Prepared, Request

PLAIN = Speech()
_ID_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
# A family that wants ids so short wants nothing else in them.
_SHORT_ID_CHARS = 16


def speech_of(
    tokenizer: Tokenizer, signs: ReasoningSigns | None, written: CallFormat | None
) -> Speech:
    """A model's speech; the control tokens that its signs are made of are read as text."""
    texts = (*(signs.texts if signs else ()), *(written.texts if written else ()))
    sign_ids = {
        token_id
        for text, token_id in tokenizer.added_tokens.items()
        if tokenizer.is_control(token_id) and any(text in one for one in texts)
    }
    return Speech(signs, written, frozenset(sign_ids))


def functions_of(request: Request) -> list[tuple[str, Mapping[str, Any]]]:
    """The request's tools by name, each with what else is said of it; refuses what is none."""
    functions = []
    for index, tool in enumerate(request.tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            where = f"tools[{index}]"
            message = f"{where} is no function with a name."
            raise Refusal(message, param=where, code="invalid_value")
        functions.append((name, function))
    return functions


def callable_tools(request: Request) -> dict[str, Any]:
    """Names of the tools that an answer may call, each with its parameters' schema."""
    choice = request.tool_choice
    if choice.mode == "none":
        return {}
    return {
        name: function.get("parameters") or {}
        for name, function in functions_of(request)
        if choice.name in {None, name}
    }


def reader_of(
    prepared: Prepared, tokenizer: Tokenizer, speech: Speech, index: int
) -> AnswerText | Detokenizer:
    """Who reads the tokens of choice ``index``."""
    request = prepared.request
    tools = callable_tools(request)
    is_plain = speech.signs is None and not (tools and speech.format)
    if request.messages is None or is_plain:
        # A raw prompt's text goes on; an answer to messages is a text of its own.
        begins_text = request.messages is not None or tokenizer.is_control(prepared.prompt_ids[-1])
        return Detokenizer(tokenizer, request.sampling.stop, begins_text=begins_text)
    calls = None
    if tools and speech.format is not None:
        new_id = partial(_call_id, prepared, index, speech.format.id_chars)
        calls = Calls(tools, new_id, _most_calls(request))
    return AnswerText(
        tokenizer, speech, request.sampling.stop, is_thinking=prepared.is_thinking, calls=calls
    )


def _most_calls(request: Request) -> int | None:
    """A tool that is named is called once."""
    choice = request.tool_choice
    return None if choice.is_parallel and choice.name is None else 1


def _call_id(prepared: Prepared, index: int, num_chars: int, call: int) -> str:
    """An id that no other call of a conversation has; the same prompt and seed give the same."""
    made_from = (
        array("q", prepared.prompt_ids).tobytes() + repr((prepared.seed, index, call)).encode()
    )
    number = int.from_bytes(blake2b(made_from, digest_size=32).digest(), "little")
    letters = []
    for _ in range(num_chars):
        number, place = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[place])
    text = "".join(letters)
    return text if num_chars < _SHORT_ID_CHARS else f"call_{text}"
