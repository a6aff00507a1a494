"""Every target over its seed and a few hundred spoilt copies of it; ``fuzz.py`` runs for longer."""

from __future__ import annotations

import random

import pytest
from fuzz.seeds import seeds
from fuzz.targets import TARGETS
from hostile.mangled_models import mangled

NUM_COPIES = 300


@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_copies_are_read_or_refused_by_name(name: str) -> None:
    seed, target = seeds()[name], TARGETS[name]
    target(seed)
    for number in range(NUM_COPIES):
        _, data = mangled(seed, len(seed), random.Random(number))  # noqa: S311
        try:
            target(data)
        except BaseException as error:
            raise AssertionError(f"copy {number}: {type(error).__name__}: {error}") from error
