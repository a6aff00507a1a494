"""Bodies of POST /v1/tokenize (a prompt, or messages) and POST /v1/detokenize."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from insitu.server.schema import Wire
from insitu.server.schema_chat import ChatFields
from insitu.server.schema_sampling import ModelName, TokenId
from insitu.types import Request


class TokenizePromptRequest(Wire):
    """A text whose ids are wanted."""

    model: ModelName
    prompt: str
    add_special_tokens: bool | None = Field(None, description="True when absent.")
    parse_special: bool | None = Field(None, description="False when absent.")

    def to_request(self, request_id: str) -> Request:
        """What was asked, in the house's own words."""
        special = self.add_special_tokens
        return Request(
            request_id=request_id,
            model=self.model,
            prompt=self.prompt,
            add_special_tokens=True if special is None else special,
            parse_special=bool(self.parse_special),
        )


class TokenizeMessagesRequest(ChatFields):
    """Messages whose rendered prompt and ids are wanted."""

    model: ModelName

    def to_request(self, request_id: str) -> Request:
        """What was asked, in the house's own words."""
        return Request(request_id=request_id, model=self.model, **self.chat_words())


class DetokenizeRequest(Wire):
    """Ids whose text is wanted."""

    model: ModelName
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
