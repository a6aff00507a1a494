"""Ten thousand mangled model files: each loads or is refused by name; none crashes or hangs.

Not here: faults made on purpose, one by one (tests/weights). The work happens in child processes
(``mangled_models.py``), so that a crash is a failure with the variant's number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_model import write_gguf, write_safetensors

from insitu.kernels.blocks import BlockType

CHILD = Path(__file__).with_name("mangled_models.py")
BATCH_TIMEOUT_S = 250
NUM_VARIANTS = 5_000  # of each format
MAX_GROWTH_KIB = 64 << 10
MIXED = {"attn_q": BlockType.Q4_0, "attn_v": BlockType.Q5_0, "ffn_down": BlockType.Q4_1}


def opened_variants(folder: Path, form: str, first: int, count: int, every: int) -> dict[str, Any]:
    """Run one batch in a child; its account, or a failure that names the variant."""
    if form == "gguf":
        (folder / form).mkdir()
        write_gguf(folder / form / "m.gguf", block_types=MIXED, tied=True)
        assert (folder / form / "m.gguf").stat().st_size < 200_000
    else:
        write_safetensors(folder / form, dtype=BlockType.BF16, tied=True)
    command = [sys.executable, str(CHILD), str(folder), form, str(first), str(count), str(every)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=BATCH_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs: {_now(folder)}")
    if done.returncode != 0:
        pytest.fail(f"ended with {done.returncode}: {_now(folder)}\n{done.stderr.decode()[-3000:]}")
    account: dict[str, Any] = json.loads(done.stdout)
    return account


def _now(folder: Path) -> str:
    now = folder / "now"
    return now.read_text() if now.exists() else "before the first variant"


def check(account: dict[str, Any], count: int) -> None:
    """Every variant accounted for, in bounded time and memory."""
    assert sum(account["outcomes"].values()) == count + 1
    assert account["outcomes"]["success"] > count // 100
    assert account["outcomes"]["refused at open"] > count // 10
    assert account["num_run"] > 0
    assert account["slowest_s"] < 2.0
    assert account["grown_kib"] < MAX_GROWTH_KIB


@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_mangled_files_load_or_are_refused_by_name(tmp_path: Path, form: str) -> None:
    check(opened_variants(tmp_path, form, 0, NUM_VARIANTS, 20), NUM_VARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("form", ["gguf", "safetensors"])
def test_more_of_them_and_every_survivor_runs(tmp_path: Path, form: str, batch: int) -> None:
    first = NUM_VARIANTS * (batch + 1)
    check(opened_variants(tmp_path, form, first, NUM_VARIANTS, 1), NUM_VARIANTS)
