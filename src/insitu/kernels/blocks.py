"""Byte layouts of quantised blocks, as GGUF stores them, and their NumPy definition."""

from __future__ import annotations

from enum import StrEnum


class BlockType(StrEnum):
    """How a tensor's weights are stored."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    Q8_0 = "Q8_0"
    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q5_0 = "Q5_0"
    Q4_K = "Q4_K"
    Q6_K = "Q6_K"
