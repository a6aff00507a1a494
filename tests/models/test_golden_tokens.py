"""A real model's float definition and numeric definition, against recorded log-probabilities.

The recorded row comes from a float32 forward pass over the same file's dequantised weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from kernels.tiny_operators import ints

from insitu.kernels.passes import lower
from insitu.kernels.reference import Reference
from insitu.kernels.reference_sampling import log_probabilities
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.kernels.program import Program

# "The capital of France is": ids, and the five most likely next tokens.
PROMPT = [504, 3575, 282, 4649, 314]
TOP = {7042: -0.2581, 260: -2.7407, 4528: -4.3844, 2250: -4.6199, 1315: -4.6778}


@pytest.fixture(scope="module")
def loaded(smollm2_path: Path) -> LoadedModel:
    return load_model(open_source(smollm2_path))


def first_step(program: Program, loaded: LoadedModel, dtype: str) -> np.ndarray:
    num = len(PROMPT)
    kv = kv_layout(loaded.spec, dtype="f16" if dtype == "f16" else "f32")
    batch = Batch(
        token_ids=ints(PROMPT),
        positions=ints(range(num)),
        slot_mapping=ints(range(num)),
        block_table=ints([0])[None],
        query_start_loc=ints([0, num]),
        seq_lens=ints([num]),
        logit_rows=ints([num - 1]),
    )
    logits = Reference(program, kv, keep_weights=False).run(batch)
    return log_probabilities(logits[0])


@pytest.mark.model
def test_the_float_definition_is_the_recorded_one(loaded: LoadedModel) -> None:
    row = first_step(loaded.program, loaded, "f32")
    assert np.allclose(row[list(TOP)], list(TOP.values()), atol=1e-3)


@pytest.mark.model
def test_the_numeric_definition_is_near_it(loaded: LoadedModel) -> None:
    program = lower(loaded.program)
    row = first_step(program, loaded, "f16")
    assert row.argmax() == max(TOP, key=lambda token: TOP[token])
    assert np.abs(row[list(TOP)] - list(TOP.values())).mean() < 0.2
