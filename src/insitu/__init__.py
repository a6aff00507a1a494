"""insitu: inference in place. ``from insitu import LLM, SamplingParams`` is the Python front door.

Both names are found when they are first used, so that importing the package costs nothing. No room
imports from here; the version is the distribution's (``importlib.metadata.version("insitu")``).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {"LLM": "insitu.llm.front_door", "SamplingParams": "insitu.types"}
__all__ = ["LLM", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'insitu' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
