"""insitu: inference in place. ``LLM`` and ``SamplingParams`` are loaded when first named."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insitu.llm.front_door import LLM
    from insitu.sampling_params import SamplingParams

__all__ = ["LLM", "SamplingParams"]

_HOME = {"LLM": "insitu.llm.front_door", "SamplingParams": "insitu.sampling_params"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'insitu' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
