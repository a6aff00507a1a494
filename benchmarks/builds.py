"""One build of insitu beside another: what a change to it bought, or cost.

    python benchmarks/builds.py MODEL_FILE OTHER_TREE [--batch 1,16] [--prefill 512] [--context 128]

Each build has a process of its own and the model in memory; they take a step in turns, with the
caches emptied between two. Two runs one after the other say little on a machine that others use
too: a core may be half as fast for a minute. Printed are the medians of both, the median of this
build's times over the other's in the same turn, and the ratio of the least; a build beside its own
copy shows what noise there is. OTHER_TREE is a source tree with its extension built
(scripts/develop). Not a gate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from insitu.bench.cases import Case, Wish
from insitu.bench.native import open_rig
from insitu.bench.work import total
from insitu.engine.plan import Wanted
from insitu.models.load import load_model
from insitu.weights.source import open_source

READY = "ready"
HERE = Path(__file__).resolve().parents[1]


def serve(model_file: Path, threads: int, cases: list[Case]) -> None:
    """Seconds of a case's step for every line with its number."""
    with closing(open_source(model_file)) as source:
        rig, works = open_rig(load_model(source), Wanted(threads=threads), cases)
    steps = [rig.steps(case) for case in cases]
    for one in steps:  # pages are touched for the first time
        rig.run(one)
    print(READY, flush=True)
    for line in sys.stdin:
        index = int(line)
        rig.read_rate(total(works[cases[index]]).read_bytes)
        print(rig.run(steps[index]), flush=True)
    rig.close()


class Build:
    """A tree's process, and its times by case."""

    def __init__(self, tree: Path, num_cases: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.seconds: list[list[float]] = [[] for _ in range(num_cases)]
        if self._answer() != READY:
            raise SystemExit(f"{tree}: the build does not run (is its extension built?)")

    def step(self, index: int) -> None:
        """One more of a case."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{index}\n")
        self.process.stdin.flush()
        self.seconds[index].append(float(self._answer()))

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def close(self) -> None:
        """It ends when there is nothing more to read."""
        self.process.communicate()


def compare(trees: tuple[Path, Path], cases: list[Case], rounds: int) -> None:
    """Turns, then a line a case."""
    with ExitStack() as opened:
        builds = [Build(tree, len(cases)) for tree in trees]
        for build in builds:
            opened.callback(build.close)
        for turn in range(rounds):
            for index in range(len(cases)):
                for build in builds if turn % 2 else reversed(builds):
                    build.step(index)
    for index, case in enumerate(cases):
        mine, other = (build.seconds[index] for build in builds)
        pairs = statistics.median(a / b for a, b in zip(mine, other, strict=True))
        least = min(mine) / min(other)
        ms = [1e3 * statistics.median(one) for one in (mine, other)]
        print(f"{case}: {ms[0]:.2f} and {ms[1]:.2f} ms, of pairs {pairs:.3f}, least {least:.3f}")


def numbers(text: str) -> tuple[int, ...]:
    """Of a list with commas."""
    return tuple(int(one) for one in text.split(",") if one)


def main() -> None:
    """Both builds, or one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("other_tree", type=Path)
    parser.add_argument("--batch", type=numbers, default=(1, 16))
    parser.add_argument("--prefill", type=numbers, default=(512,))
    parser.add_argument("--context", type=numbers, default=(128,))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = Wish(options.batch, options.context, options.prefill).cases()
    if options.serve:
        serve(options.model, options.threads, cases)
    else:
        compare((HERE, options.other_tree.resolve()), cases, options.rounds)


if __name__ == "__main__":
    main()
