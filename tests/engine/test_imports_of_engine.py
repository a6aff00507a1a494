"""Bookkeeping is free of tensors: checked by importing it, beside the import contracts."""

from __future__ import annotations

import subprocess
import sys


def test_bookkeeping_loads_no_array_library() -> None:
    code = (
        "import sys\n"
        "import insitu.engine.sequence, insitu.engine.block_pool, insitu.engine.scheduler\n"
        "import insitu.engine.engine, insitu.engine.loop\n"
        "sys.exit(int('numpy' in sys.modules or 'insitu.kernels' in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_root_costs_nothing() -> None:
    code = "import sys, insitu; sys.exit(int('numpy' in sys.modules or 'asyncio' in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
