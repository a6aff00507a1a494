"""The programs of tests/csrc: as scripts/develop built them, sanitized, on another processor.

Each checks that all instruction sets, thread counts and batches gave the same bits, and prints a
digest of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OVER_TABLES = ("executor", "matmul", "sampler")  # each runs every table; simd is built once a set
DEVELOP = ROOT / "build" / "develop" / "tests" / "csrc"


def _digests(output: str) -> list[str]:
    return sorted(line for line in output.splitlines() if line.startswith("digest "))


def _native_tests(way: str) -> str:
    if not shutil.which("cmake"):
        pytest.skip("no cmake here")
    command = [str(ROOT / "scripts" / "native-tests"), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert done.stdout.count("== ") > len(OVER_TABLES)
    return done.stdout


@pytest.mark.parametrize("name", [*OVER_TABLES, "simd", "threads", "step_queue"])
def test_a_native_program_passes(name: str) -> None:
    programs = [p for p in DEVELOP.glob(f"test_{name}*") if p.is_file() and os.access(p, os.X_OK)]
    if not programs:
        pytest.skip("scripts/develop did not run here: no native test programs")
    for program in programs:
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow  # builds every kernel with checks: minutes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizers: str) -> None:
    _native_tests(sanitizers)


@pytest.mark.slow  # builds every kernel twice, and an emulator runs one build: minutes
@pytest.mark.timeout(3600)
def test_another_architecture_gives_the_same_bits() -> None:
    for tool in (
        os.environ.get("CROSS_CXX", "aarch64-linux-gnu-g++"),
        os.environ.get("QEMU", "qemu-aarch64-static"),
    ):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} here")
    emulated = _native_tests("aarch64")
    assert emulated.count("neon-dotprod ran") == len(OVER_TABLES)
    digests = _digests(emulated)
    assert digests
    assert digests == _digests(_native_tests("plain"))
