"""What is left of two-thread decoding when another process takes one of the two cores.

    python benchmarks/contention.py SmolLM2-135M-Instruct.Q4_1.gguf --seconds 3

In one run, at batch 1: one thread and then two threads on a free machine, then two threads
while a process that never sleeps is pinned to one core. Tokens a second of each, and the last as a
share of the first: 0.9 and more means that a thread that is descheduled delays nobody.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from insitu.engine.machine import memory_limit
from insitu.engine.plan import Wanted, make_plan
from insitu.engine.start import make_native
from insitu.kernels.sampling import SamplingArrays
from insitu.models.batch import Batch
from insitu.models.load import load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.kernels.native import Native

CONTEXT = 128
HOG = "import os; os.sched_setaffinity(0, {int(os.environ['CORE'])})\nwhile True: pass"


def native(path: Path, threads: int) -> Native:
    """The model with a small cache."""
    model = load_model(open_source(path))
    wanted = Wanted(threads=threads, max_model_len=512, max_num_seqs=1)
    return make_native(model, make_plan(model, wanted, memory_limit()))


def tokens_per_s(engine: Native, block_size: int, seconds: float) -> float:
    """Decode the same position again and again."""
    ints = lambda *values: np.array(values, np.int32)
    blocks = np.arange(CONTEXT // block_size + 1, dtype=np.int32)[None]
    at = ints(CONTEXT)
    batch = Batch(ints(1), at, at, blocks, ints(0, 1), at + 1, ints(0))
    sampling = SamplingArrays.of(1)
    for _ in range(20):
        engine.step(batch, sampling)
    num, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        engine.step(batch, sampling)
        num += 1
    return num / (time.perf_counter() - start)


@contextmanager
def hog(core: int) -> Iterator[None]:
    """A process that takes all it can get of one core."""
    process = subprocess.Popen([sys.executable, "-c", HOG], env={**os.environ, "CORE": str(core)})
    try:
        time.sleep(0.2)
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, cores)
    one, two = native(given.model, 1), native(given.model, 2)
    size = two.kv.block_size
    rates = {
        "one thread, free": tokens_per_s(one, size, given.seconds),
        "two threads, free": tokens_per_s(two, size, given.seconds),
    }
    with hog(cores[-1]):
        rates["two threads, one core taken"] = tokens_per_s(two, size, given.seconds)
    for name, rate in rates.items():
        print(f"{name:30} {rate:8.1f} tokens/s")
    first, *_, last = rates.values()
    print(f"{'share of one thread, free':30} {last / first:8.2f}")


if __name__ == "__main__":
    main()
