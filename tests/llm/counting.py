"""Answers compared apart from what the prefix cache held."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from insitu.llm.front_door import Completion


def counted_anew(one: Completion) -> Completion:
    """An answer without what tells whether its prompt was found computed."""
    return replace(one, usage=replace(one.usage, cached_tokens=0))
