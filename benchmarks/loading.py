"""How long a model takes to load from a warm file cache, and the most memory it holds meanwhile.

    python benchmarks/loading.py MODEL_FILE [--runs 5]

Each run is a fresh process, modules imported before the clock starts: the file is opened, its
program recorded, its vocabulary and template read, its weights packed on every core: the order of
`insitu serve`. Memory is
anonymous and shared pages (RssAnon + RssShmem), sampled every 2 ms, above what the process held
before, beside the bytes that the plan gives weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from insitu.codec.chat import load_chat_template
from insitu.codec.tokenizer import load_tokenizer
from insitu.engine.machine import num_usable_cpus
from insitu.kernels import native
from insitu.kernels.passes import lower
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

EVERY_S = 0.002


def held_bytes() -> int:
    """Anonymous and shared pages of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    wanted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(wanted))


class Watch:
    """The most that was held."""

    def __init__(self) -> None:
        self.most_bytes = held_bytes()
        self.most_of: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def lap(self, what: str) -> None:
        """What was held at most since the last one."""
        self.most_of[what] = max(self.most_bytes, held_bytes())
        self.most_bytes = 0

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self.most_bytes = max(self.most_bytes, held_bytes())


def once(path: Path) -> dict[str, Any]:
    """One load, in this process."""
    import tokenizers  # its import is none of loading's

    del tokenizers
    before = held_bytes()
    times = {}
    with Watch() as watch:
        start = at = time.perf_counter()

        def lap(what: str) -> None:
            nonlocal at
            now = time.perf_counter()
            times[what], at = now - at, now
            watch.lap(what)

        source = open_source(path)
        lap("opening")
        model = load_model(source)
        program = lower(model.program)
        lap("recording")
        tokenizer = load_tokenizer(source)
        template = load_chat_template(source, tokenizer)
        lap("vocabulary")
        kv = kv_layout(model.spec)
        limits = native.Limits(64, 16, 16, 64, 4)
        loaded = native.Native(program, kv=kv, limits=limits, num_threads=num_usable_cpus())
        lap("packing")
        times["all"] = at - start
    del template
    return {
        "times": times,
        "most_of": {what: most - before for what, most in watch.most_of.items()},
        "weights_bytes": loaded.packed_bytes,
    }


def main() -> None:
    """Medians over processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.once:
        print(json.dumps(once(given.model)))
        return
    given.model.read_bytes()  # the file cache is warm
    command = [sys.executable, __file__, str(given.model), "--once"]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for _ in range(given.runs)
    ]
    for what in runs[0]["times"]:
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
