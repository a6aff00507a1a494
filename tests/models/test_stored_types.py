"""Whole models in types that run as another: planned as they run, and run as they are defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernels.tiny_decoder import Work, batch_of
from tiny_model import write_gguf

from insitu.engine.plan import Wanted, make_plan
from insitu.kernels.blocks import BlockType
from insitu.kernels.native import Limits, Native
from insitu.kernels.passes import lower
from insitu.kernels.reference import Reference
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_layers": 1,
    "num_heads": 16,
}
LIMITS = Limits(16, 16, 1, 2, 2)


@pytest.mark.parametrize(
    ("stored", "run"), [("IQ4_XS", "Q8_K16"), ("Q3_K", "Q6_K"), ("MXFP4", "Q8_0"), ("Q5_K", "Q5_K")]
)
def test_a_model_of_such_a_type(tmp_path: Path, stored: str, run: str) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, block_types=BlockType(stored), **SIZES)
    model = load_model(open_source(path))
    plan = make_plan(model, Wanted(threads=2))
    (group,) = plan.weights
    assert (group.stored, group.runs_in) == (stored, run)
    assert plan.numeric_settings["packed_types"] == run
    in_file = sum(
        s.n * BlockType(stored).row_bytes(s.k) for li in model.linears for s in li.segments
    )
    assert group.stored_bytes == in_file
    assert f"  {stored}, runs in {run}" in plan.describe()
    kv = kv_layout(model.spec, block_size=16, dtype="f32")
    program = lower(model.program)
    tokens = np.arange(3, 13, dtype=np.int32)
    batch = batch_of([Work(tokens, 0, 10, [0], range(10))], 16)
    wanted = Reference(program, kv).run(batch)
    native = Native(program, kv=kv, limits=LIMITS, num_threads=2)
    got = native.forward(batch)
    native.close()
    assert np.isfinite(got).all()
    assert np.abs(got - wanted).max() <= 1e-3 * np.abs(wanted).max()
