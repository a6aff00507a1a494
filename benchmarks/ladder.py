"""What each version of the kernels bought: a rung adds one thing to the rung before it.

    python benchmarks/ladder.py smollm2-135m [--batch 1,16] [--prefill 64] [--context 128]

The first rung is plain C++ on one thread, every operator by itself. Then operators that follow each
other become one (bias, residual, gate, soft-cap and the int8 form of what a norm or a gate makes),
then come the instruction sets that this processor has, the better later, then all threads. All
rungs give the same bits. They are measured in turns, each in a process of its own; milliseconds are
medians over the rounds, of the whole step and by kernel. Not a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

from insitu.bench.cases import Wish
from insitu.bench.native import QUICK, measure
from insitu.cli.opening import locate
from insitu.engine.plan import Wanted
from insitu.kernels.native import available_isas
from insitu.kernels.passes import lower, quantize_activations
from insitu.models.load import load_model
from insitu.settings.fields import Settings
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = "whole step"


@dataclass(frozen=True)
class Rung:
    """One version of the kernels."""

    name: str
    isa: str
    threads: int
    is_fused: bool = True


def rungs_here() -> list[Rung]:
    """From the least to what is served."""
    first, *better = available_isas()
    cores = len(os.sched_getaffinity(0))
    return [
        Rung(f"{first}, one thread, operators apart", first, 1, is_fused=False),
        Rung("operators fused", first, 1),
        *(Rung(isa, isa, 1) for isa in better),
        Rung(f"{cores} threads", (first, *better)[-1], cores),
    ]


def times(path: Path, rung: Rung, wish: Wish) -> dict[str, dict[str, float]]:
    """Milliseconds by case and kernel, of this process's kernels."""
    passes = lower if rung.is_fused else quantize_activations
    source = open_source(path)
    try:
        with mock.patch("insitu.engine.start.lower", passes):
            report = measure(
                load_model(source), Wanted(threads=rung.threads), wish, QUICK, lambda *_: None
            )
    finally:
        source.close()
    found = {str(row.case): {WHOLE: row.seconds * 1e3} for row in report.rows}
    for one in report.operators:
        kind = one.operator.split()[0]
        kernels = found[str(one.case)]
        kernels[kind] = kernels.get(kind, 0.0) + one.ms
    return found


def in_turn(options: argparse.Namespace) -> dict[str, list[Any]]:
    """What every rung took, round by round."""
    found: dict[str, list[Any]] = {}
    for _ in range(options.rounds):
        for rung in rungs_here():
            command = [sys.executable, __file__, *sys.argv[1:], "--rung", json.dumps(asdict(rung))]
            environment = {**os.environ, "INSITU_ISA": rung.isa}
            done = subprocess.run(
                command, stdout=subprocess.PIPE, text=True, check=True, env=environment
            )
            found.setdefault(rung.name, []).append(json.loads(done.stdout))
    return found


def show(found: dict[str, list[Any]]) -> None:
    """A table a case: rungs down, kernels across."""
    first = next(iter(found.values()))[0]
    for case, kernels in first.items():
        names = sorted(kernels, key=lambda name: (name != WHOLE, -kernels[name]))[:7]
        print(f"\n{case}: ms (whole step: times as fast as the rung before)")
        print(f"{'':42}" + "".join(f"{name:>16.16}" for name in names))
        before = None
        for rung, rounds in found.items():
            ms = {n: statistics.median(one[case].get(n, 0.0) for one in rounds) for n in names}
            bought = f" ({before / ms[WHOLE]:.2f})" if before else ""
            before = ms[WHOLE]
            cells = [f"{ms[WHOLE]:.2f}{bought}", *(f"{ms[n]:.2f}" for n in names if n != WHOLE)]
            print(f"{rung:42.42}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def numbers(text: str) -> tuple[int, ...]:
    """Of a list with commas."""
    return tuple(int(one) for one in text.split(","))


def main() -> None:
    """The ladder, or one of its rungs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--batch", type=numbers, default=(1, 16))
    parser.add_argument("--prefill", type=numbers, default=(64,))
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rung", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rung is None:
        show(in_turn(options))
        return
    wish = Wish(options.batch, (options.context,), options.prefill)
    path = locate(options.model, Settings()).path
    print(json.dumps(times(path, Rung(**json.loads(options.rung)), wish)))


if __name__ == "__main__":
    main()
