"""What lies between native calls: the share of a step in which none runs.

    python benchmarks/bubble.py MODEL_FILE --batch 1,16

An engine is stepped by hand, in turns with each step scheduled after the one before it was taken in
and while it runs. What lies between is Python that schedules, fills arrays and takes stock, and the
hand-over from thread to thread. Medians over the rounds. Not a gate.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from insitu.engine.plan import Wanted, make_plan
from insitu.engine.sequence import Prompt
from insitu.engine.start import make_engine
from insitu.models.load import load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from insitu.engine.engine import Engine


def measure(engine: Engine, batch: int, context: int, steps: int) -> tuple[float, float]:
    """Milliseconds of a decode step, and of the native call in it."""
    chance = random.Random(0)
    for index in range(batch):
        ids = tuple(chance.randrange(1000) for _ in range(context))
        engine.add(Prompt(f"{index}", ids, 4 * steps, index, temperature=0.0))
    native = engine.runner._native
    scheduler = engine.scheduler
    while scheduler.waiting or any(one.num_output_tokens < 5 for one in scheduler.running):
        engine.step()
    begin_s, begin_ns = time.perf_counter(), native.busy_ns
    for _ in range(steps):
        engine.step()
    step_ms = (time.perf_counter() - begin_s) / steps * 1e3
    native_ms = (native.busy_ns - begin_ns) / steps / 1e6
    for index in range(batch):
        engine.abort(f"{index}")
    while engine.has_work:
        engine.step()
    return step_ms, native_ms


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    source = open_source(options.file)
    model = load_model(source)
    plan = make_plan(model, Wanted(threads=options.threads))
    engine = make_engine(model, plan)
    source.close()
    for batch in map(int, options.batch.split(",")):
        taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for runs_ahead, found in taken.items():
                engine.runs_ahead = runs_ahead
                found.append(measure(engine, batch, options.context, options.steps))
        for runs_ahead, found in taken.items():
            step_ms = statistics.median(one for one, _ in found)
            native_ms = statistics.median(one for _, one in found)
            bubble_ms = statistics.median(one - other for one, other in found)
            sys.stdout.write(
                f"batch {batch:<3} {'ahead' if runs_ahead else 'in turn':<8} "
                f"step {step_ms:.3f} ms, native {native_ms:.3f} ms, "
                f"between {bubble_ms * 1e3:.0f} us ({bubble_ms / step_ms:.1%})\n"
            )
    engine.runner.close()


if __name__ == "__main__":
    main()
