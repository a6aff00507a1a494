"""Model families: one short file each, owning all that is special about its family.

May import: models.spec, keys, rope, config, names, placer.
A new family is a file here and a place in the table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

NAMES = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "granite"),
    *("olmo2", "stablelm", "gpt2", "mixtral", "qwen_moe", "olmoe"),
)


def families() -> Iterator[ModuleType]:
    """Every family's file, each imported as it is come to: most are never wanted."""
    for name in NAMES:
        yield import_module(f"{__name__}.{name}")
