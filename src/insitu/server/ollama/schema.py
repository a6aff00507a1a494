"""The bodies of POST /api/chat, /api/generate and /api/show.

Not here: what the fields become (``to_chat``). Always true: what would change how the model is
loaded (``num_gpu``, ``num_thread``, ...) is refused by name, as is what stands for another prompt.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from insitu.sampling_params import SamplingParams
from insitu.server.limits import MAX_TOOLS
from insitu.server.schema import MAX_ID, Neutral, Wire
from insitu.server.schema_sampling import ModelName, Nothing, StopString
from insitu.server.schema_tools import FunctionName, Tool

_DURATION = re.compile(r"(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+")


def _kept(value: float | str) -> float | str:
    """A model stays as long as the server, so any time but none at all is granted."""
    is_time = isinstance(value, float | int) or value.startswith("-") or _DURATION.fullmatch(value)
    if not is_time or not str(value).strip("0.nuµmsh"):
        raise PydanticCustomError(
            "keep_alive", "the model stays loaded while the server runs: a time above 0, or below"
        )
    return value


KeepAlive = Annotated[
    float | str,
    AfterValidator(_kept),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "not": {"const": 0}}, {"type": "string", "const": "5m"}]}
    ),
]
NoImages = Annotated[Annotated[list[str], Field(max_length=0)] | None, Neutral("an empty list")]


class CalledFunction(Wire):
    """A tool's name and its arguments."""

    name: FunctionName
    arguments: dict[str, Any]
    description: str | None = None
    index: int | None = None


class CallMade(Wire):
    """A call that an earlier answer made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(Wire):
    """One turn."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Annotated[list[str], Field(max_length=0)] | None = None
    tool_calls: Annotated[list[CallMade], Field(fail_fast=True)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class Options(Wire):
    """How tokens are chosen: a chat's fields, some under other names."""

    num_predict: Annotated[int, Field(ge=-2, le=MAX_ID)] | None = Field(
        None, description="-1 and -2: to the end of the context, as when absent."
    )
    num_ctx: Annotated[int, Field(ge=1, le=MAX_ID)] | None = Field(
        None, description="Prompt and answer together; at most the served model's length."
    )
    seed: Annotated[int, Field(ge=0, le=2**64 - 1)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_ID)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: (
        StopString
        | Annotated[list[StopString], Field(max_length=SamplingParams.MAX_STOP, fail_fast=True)]
        | None
    ) = None


Think = bool | Literal["low", "medium", "high"]
Format = Literal["", "json"] | dict[str, Any]


class _Asked(Wire):
    model: ModelName
    stream: bool | None = Field(None, description="True when absent.")
    format: Format | None = None
    options: Options | None = None
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=SamplingParams.MAX_LOGPROBS)] | None = None


class ChatRequest(_Asked):
    """A conversation to be continued; without messages, whether the model is there."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class GenerateRequest(_Asked):
    """A prompt to be answered, or with ``raw`` to be continued as it is."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: Annotated[Literal[""] | None, Neutral("an empty text")] = None
    template: Annotated[Literal[""] | None, Neutral("an empty text")] = None
    images: NoImages = None
    context: Annotated[Annotated[list[int], Field(max_length=0)] | None, Neutral("none")] = None
    width: Nothing = None
    height: Nothing = None
    steps: Nothing = None


class ShowRequest(Wire):
    """A model that is asked about."""

    model: ModelName
    verbose: bool | None = None
