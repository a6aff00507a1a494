"""Wire fields about tools and reasoning, which chats and other endpoints share.

Not here: which tools exist (``llm`` refuses a choice of none of them). Always true: a tool is a
function; what other kinds there are is refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from insitu.server.limits import MAX_TOOLS
from insitu.server.schema import Wire
from insitu.types import Reasoning, ToolChoice

MAX_NAME_CHARS = 64
Effort = Literal["none", "minimal", "low", "medium", "high"]
FunctionName = Annotated[str, Field(pattern=rf"^[A-Za-z0-9_.-]{{1,{MAX_NAME_CHARS}}}$")]


class Function(Wire):
    """What may be called; without parameters it takes none."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None


class Tool(Wire):
    """A tool of a request."""

    type: Literal["function"]
    function: Function


class ChosenFunction(Wire):
    """A function by its name."""

    name: FunctionName


class ChosenTool(Wire):
    """The tool that must be called."""

    type: Literal["function"]
    function: ChosenFunction


Choice = Literal["none", "auto", "required"] | ChosenTool


class ToolFields(Wire):
    """What an answer may call, and how much it may reason."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = Field(None, description="`auto` when absent.")
    parallel_tool_calls: bool | None = Field(
        None, description="When false, at most one call; true when absent."
    )
    reasoning_effort: Effort | None = Field(
        None, description="Given to the chat template where it reads it; also a number of tokens."
    )
    max_reasoning_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = Field(
        None, description="After so many tokens reasoning is ended, and the answer begins."
    )

    def tool_words(self) -> dict[str, Any]:
        """The fields of a ``types.Request`` that these fill."""
        return {
            "tools": tuple(one.model_dump(exclude_none=True) for one in self.tools or ()),
            "tool_choice": self._choice(),
            "reasoning": Reasoning(self.reasoning_effort, self.max_reasoning_tokens),
        }

    def _choice(self) -> ToolChoice:
        is_parallel = self.parallel_tool_calls is not False
        chosen = self.tool_choice or "auto"
        if isinstance(chosen, ChosenTool):
            return ToolChoice("required", chosen.function.name, is_parallel)
        return ToolChoice(chosen, None, is_parallel)
