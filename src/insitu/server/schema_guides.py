"""Wire fields that say what an answer must match, in OpenAI's words and in vLLM's.

Not here: compiling (``llm`` refuses what cannot be). Always true: an answer has one guide at most.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from insitu.refusal import Refusal
from insitu.server.limits import MAX_CHOICES
from insitu.server.schema import Wire
from insitu.types import Guide, GuideKind

Schema = dict[str, Any] | bool
Choices = Annotated[list[str], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]


class TextFormat(Wire):
    """Plain text."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(Wire):
    """A schema, always enforced, whatever ``strict`` says."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    schema_: Schema | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Wire):
    """JSON that is valid against a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StructuredOutputs(Wire):
    """vLLM's object; exactly one of its fields."""

    json_: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = Field(None, description="Lark, or GBNF where it holds `::=`.")


class GuideFields(Wire):
    """What an answer must match, for texts and chats."""

    guided_json: Schema | None = Field(None, description="A JSON schema.")
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = Field(None, description="Lark, or GBNF where it holds `::=`.")
    structured_outputs: StructuredOutputs | None = None

    def guide(self, response_format: ResponseFormat | None = None) -> Guide | None:
        """The one that is given; two are refused."""
        wanted = self.structured_outputs
        nested = "structured_outputs"
        given = [
            _guide("json_schema", self.guided_json, "guided_json"),
            _guide("regex", self.guided_regex, "guided_regex"),
            _guide("choice", self.guided_choice, "guided_choice"),
            _grammar(self.guided_grammar, "guided_grammar"),
            _of_format(response_format),
        ]
        if wanted is not None:
            given += [
                _guide("json_schema", wanted.json_, f"{nested}.json"),
                _guide("json_object", wanted.json_object or None, f"{nested}.json_object"),
                _guide("regex", wanted.regex, f"{nested}.regex"),
                _guide("choice", wanted.choice, f"{nested}.choice"),
                _grammar(wanted.grammar, f"{nested}.grammar"),
            ]
        guides = [one for one in given if one is not None]
        if len(guides) > 1:
            message = f"{guides[0].param} and {guides[1].param} cannot both be given."
            raise Refusal(message, param=guides[1].param, code="conflicting_fields")
        return guides[0] if guides else None


def _guide(kind: GuideKind, value: Any, param: str) -> Guide | None:
    if value is None:
        return None
    return Guide(kind, tuple(value) if kind == "choice" else value, param)


def _grammar(text: str | None, param: str) -> Guide | None:
    return None if text is None else Guide("gbnf" if "::=" in text else "lark", text, param)


def _of_format(wanted: ResponseFormat | None) -> Guide | None:
    if isinstance(wanted, JsonObjectFormat):
        return Guide("json_object", None, "response_format")
    if isinstance(wanted, JsonSchemaFormat):
        named = wanted.json_schema
        schema = True if named.schema_ is None else named.schema_
        return Guide("json_schema", schema, "response_format.json_schema.schema")
    return None
