"""A run of quantize that is stopped on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.quantize import run
from insitu.quantize.rounding import round_with_moments

if TYPE_CHECKING:
    import numpy as np
    import pytest

    from insitu.kernels.blocks import BlockType


def stopped_at(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Interrupt the run before the rounding of this number; gives one item for each that was."""
    made: list[str] = []

    def counting(kind: BlockType, own: np.ndarray, moments: np.ndarray) -> object:
        if len(made) == number:
            raise KeyboardInterrupt
        made.append("")
        return round_with_moments(kind, own, moments)

    monkeypatch.setattr(run, "round_with_moments", counting)
    return made
