"""insitu beside other engines, alternating in one run: decode, prefill, and a batch.

    python benchmarks/compare.py MODEL.gguf --batch 16 \\
        --peer llama-cpp=venv-llama/bin/python --peer openvino-genai=venv-ov/bin/python \\
        --peer batched-bench=llama.cpp/build/bin/llama-batched-bench

A peer runs in an environment of its own: NAME=PYTHON, or NAME=PYTHON:FILE for another form of the
model; ``batched-bench`` is a program built of llama.cpp's or ik_llama.cpp's repository instead.
Without --peer, those that this Python can import are run. Medians over the rounds, and over the raw
reads that came before every measurement: a host's bandwidth moves by the minute, so only ratios
within one run mean anything. Not a gate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

PEERS = Path(__file__).resolve().parent / "peers"
# name -> (script, module that says it is there; none: what is given is a program, not a Python)
KNOWN = {
    "llama-cpp": ("llama_cpp_peer.py", "llama_cpp"),
    "openvino-genai": ("openvino_genai_peer.py", "openvino_genai"),
    "onnxruntime-genai": ("onnxruntime_genai_peer.py", "onnxruntime_genai"),
    "batched-bench": ("batched_bench_peer.py", ""),
}
CONTEXT = 128


def say(line: str, file: TextIO = sys.stdout) -> None:
    """Now."""
    file.write(line + "\n")
    file.flush()


@dataclass
class Runner:
    """One engine's process, and its tokens a second by workload."""

    label: str
    process: subprocess.Popen[str]
    rates: dict[str, list[float]] = field(default_factory=dict)

    def ask(self, **question: Any) -> float:
        """Amount a second."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["amount"] / answer["seconds"]

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        return json.loads(line)

    def introduce(self) -> None:
        """Wait until the model is loaded."""
        answer = self._answer()
        self.label = f"{answer['name']} ({answer['version']}){self.label}"


def start(script: str, python: str, model: Path, options: argparse.Namespace, note: str) -> Runner:
    """A process that loads the model."""
    command = [python, str(PEERS / script), str(model), str(options.threads), str(options.batch)]
    if script == KNOWN["batched-bench"][0]:
        command = [sys.executable, *command[1:], python]
    errors = None if options.verbose else subprocess.DEVNULL
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
    return Runner(note, process)


def peers(options: argparse.Namespace) -> list[tuple[str, str, Path]]:
    """(name, python, model) of every other engine."""
    if not options.peer:
        return [
            (name, sys.executable, options.model)
            for name, (_, module) in KNOWN.items()
            if module and find_spec(module)
        ]
    chosen = []
    for text in options.peer:
        name, _, rest = text.partition("=")
        python, _, model = rest.partition(":")
        if name not in KNOWN or not python:
            raise SystemExit(f"--peer {text}: NAME=PYTHON[:FILE], NAME one of {', '.join(KNOWN)}")
        chosen.append((name, python, Path(model) if model else options.model))
    return chosen


def run(options: argparse.Namespace) -> tuple[list[Runner], list[float]]:
    """All rounds; an engine that fails is named and left out."""
    mine = start("insitu_peer.py", sys.executable, options.model, options, "")
    mine.introduce()
    runners = [mine]
    for name, python, model in peers(options):
        note = "" if model == options.model else f", {model.name}"
        one = start(KNOWN[name][0], python, model, options, note)
        try:
            one.introduce()
            runners.append(one)
        except EOFError:
            say(f"left out: {name} cannot run {model.name} (--verbose shows why)", file=sys.stderr)
    reads: list[float] = []
    workloads: dict[str, dict[str, Any]] = {
        "decode 1": {"do": "decode", "batch": 1, "context": CONTEXT, "tokens": options.tokens},
        "prefill 512": {"do": "prefill", "tokens": 512},
        f"batch {options.batch}": {
            "do": "decode",
            "batch": options.batch,
            "context": CONTEXT,
            "tokens": options.tokens // 2,
        },
    }
    for _ in range(options.rounds):
        for workload, question in workloads.items():
            for one in runners:
                reads.append(mine.ask(do="read"))
                one.rates.setdefault(workload, []).append(one.ask(**question))
    return runners, reads


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", action="append", metavar="NAME=PYTHON[:FILE]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tokens", type=int, default=64, help="decoded a measurement (batch: half)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="let engines write to standard error"
    )
    options = parser.parse_args()
    runners, reads = run(options)
    for one in runners:
        one.process.terminate()
        one.process.wait()
    mine = runners[0]
    gbps = [read / 1e9 for read in reads]
    say(f"{options.model.name}, {options.threads} threads, tokens/s (insitu's multiple)")
    say(f"raw read {statistics.median(gbps):.1f} GB/s, {min(gbps):.1f} to {max(gbps):.1f}")
    width = max(len(one.label) for one in runners) + 2
    say(" " * width + "".join(f"{workload:>20}" for workload in mine.rates))
    for one in runners:
        cells = ""
        for workload, rates in one.rates.items():
            rate = statistics.median(rates)
            ratio = statistics.median(mine.rates[workload]) / rate
            cells += f"{rate:>12,.1f} ({ratio:.2f}x)".rjust(20)
        say(one.label.ljust(width) + cells)


if __name__ == "__main__":
    main()
