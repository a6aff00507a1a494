"""How long a model takes to load from a warm file cache, and the most memory it holds meanwhile.

    python benchmarks/loading.py MODEL_FILE [--runs 5]

Each run is a fresh process, modules imported before the clock starts: the file is opened, its
program recorded, its vocabulary and template read, its weights packed on every core: the order of
`insitu serve`. Memory is
anonymous and shared pages (RssAnon + RssShmem), sampled every 2 ms by another process, above what
the process held before, beside the bytes that the plan gives weights.
"""

from __future__ import annotations

import argparse
import json
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from insitu.codec.chat import load_chat_template
from insitu.codec.tokenizer import load_tokenizer
from insitu.engine.loop import tune_process
from insitu.engine.machine import num_usable_cpus
from insitu.kernels import native
from insitu.kernels.passes import lower
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

EVERY_S = 0.002
ORDER = ("opening", "recording", "vocabulary", "packing")


def held_bytes(process: int | str = "self") -> int:
    """Anonymous and shared pages of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    wanted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(wanted))


def load(path: Path) -> None:
    """One load, in this process: a line for each of its parts, and one before."""
    import tokenizers  # its import is none of loading's

    del tokenizers
    tune_process()
    at = time.perf_counter()

    def lap(**more: Any) -> None:
        nonlocal at
        now = time.perf_counter()
        print(json.dumps({"time_s": now - at, "held_bytes": held_bytes(), **more}), flush=True)
        at = time.perf_counter()

    lap()
    source = open_source(path)
    lap()
    model = load_model(source)
    program = lower(model.program)
    lap()
    tokenizer = load_tokenizer(source)
    template = load_chat_template(source, tokenizer)
    lap()
    limits = native.Limits(64, 16, 16, 64, 4)
    threads = num_usable_cpus()
    loaded = native.Native(program, kv=kv_layout(model.spec), limits=limits, num_threads=threads)
    lap(weights_bytes=loaded.packed_bytes)
    del template


def watched(path: Path) -> dict[str, Any]:
    """One load, in another process: times, and the most that was held in each part."""
    command = [sys.executable, __file__, str(path), "--once"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        laps: list[dict[str, Any]] = []
        most: list[int] = [0]
        while len(laps) <= len(ORDER):
            if not select.select([process.stdout], [], [], EVERY_S)[0]:
                most[-1] = max(most[-1], held_bytes(process.pid))
                continue
            laps.append(json.loads(process.stdout.readline()))
            most[-1] = max(most[-1], laps[-1]["held_bytes"])
            most.append(0)
    before = laps[0]["held_bytes"]
    times = [lap["time_s"] for lap in laps[1:]]
    return {
        "times": {**dict(zip(ORDER, times, strict=True)), "all": sum(times)},
        "most_of": {what: one - before for what, one in zip(ORDER, most[1:-1], strict=True)},
        "weights_bytes": laps[-1]["weights_bytes"],
    }


def main() -> None:
    """Medians over processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        load(given.model)
        return
    given.model.read_bytes()  # the file cache is warm
    runs = [watched(given.model) for _ in range(given.runs)]
    for what in (*ORDER, "all"):
        taken = sorted(run["times"][what] for run in runs)
        span = f"{statistics.median(taken):.3f} s ({taken[0]:.3f} to {taken[-1]:.3f})"
        most = max(run["most_of"].get(what, 0) for run in runs)
        print(f"{what:>10}: {span}, {most / 2**20:.1f} MiB at most")
    most = max(max(run["most_of"].values()) for run in runs)
    weights = runs[0]["weights_bytes"]
    print(
        f"{most / 2**20:.1f} MiB at most, {most / weights:.3f} of {weights / 2**20:.1f} MiB planned"
    )


if __name__ == "__main__":
    main()
