"""A server under load beside what its kernels alone would give, and beside other servers.

    python benchmarks/load.py smollm2-135m --concurrency 1,4,8,16,32
    python benchmarks/load.py MODEL.gguf --concurrency 16 \\
        --peer llama-server=llama.cpp/build/bin/llama-server \\
        --peer llama-server=llama.cpp/build/bin/llama-server:MODEL-Q4_0.gguf \\
        --peer vllm=venv-vllm/bin/vllm:CHECKPOINT_FOLDER

In one run ``insitu bench native`` (caches warm) gives prefill and decode rates, ``insitu serve`` is
started, ``insitu bench serve`` loads it. With ``prompt`` tokens in and ``output`` tokens out,

    ideal = output / (prompt / prefill rate + output / decode rate)

output tokens a second, the decode rate being that of a batch as large as the number of clients (at
most 16) at the context in the middle of an answer. Other servers are started before, stand still
while they are not asked, and are loaded in the same way, in turns with ours. Without ``--peer``,
those that are found on the path. Not a gate.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peer_servers import COMMANDS, Setting, peer_of, start_all
from peer_servers import found as peers_found
from serving import start, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from peer_servers import Server

MAX_BATCH = 16
SLACK_TOKENS = 64  # of a context: a prompt's words are not all one token


def say(line: str) -> None:
    """To standard output, now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def insitu(*arguments: str) -> Any:
    """What a verb prints as JSON."""
    command = [sys.executable, "-m", "insitu", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


@dataclass(frozen=True)
class Native:
    """What the kernels alone give: tokens a second of a prompt, and of answers by batch."""

    read_gbps: float
    prefill: float
    decode: dict[int, float]

    def ideal(self, options: argparse.Namespace, clients: int) -> float:
        """Output tokens a second that nothing but steps would leave."""
        rate = self.decode[min(clients, MAX_BATCH)]
        return float(options.output / (options.prompt / self.prefill + options.output / rate))


def native_rates(options: argparse.Namespace, batches: list[int]) -> Native:
    """Of this run."""
    context = options.prompt + options.output // 2
    report = insitu(
        *("bench", "native", options.model, "--warm", "--prefill", str(options.prompt)),
        *("--batch", ",".join(map(str, batches)), "--context", str(context)),
        *("--threads", str(options.threads)),
    )
    prefill = next(row["tokens_per_s"] for row in report["prefill"] if row["context"] == 0)
    decode = {row["batch"]: round(row["tokens_per_s"], 1) for row in report["decode"]}
    return Native(report["ceilings"]["read_gbps"], prefill, decode)


def load(options: argparse.Namespace, url: str, clients: int, model: str, turn: int) -> Any:
    """Figures of a closed loop."""
    found = insitu(
        *("bench", "serve", url, "--concurrency", str(clients)),
        *(("--model", model) if model else ()),
        *("--num-requests", str(max(clients, options.requests) * options.rounds)),
        *("--input-tokens", str(options.prompt), "--output-tokens", str(options.output)),
        *("--seed", str(options.seed + 1000 * turn + clients)),  # prompts no load before had
    )
    # Of a server that tells no usage in a stream every answer counts as whole.
    found["output_tokens_per_s"] = (
        found["output_tokens_per_s"] or found["finished"] * options.output / found["wall_s"]
    )
    return found


@contextmanager
def own_server(options: argparse.Namespace) -> Iterator[str]:
    """A server of ours; its address."""
    process = start(options.model, "--threads", str(options.threads))
    try:
        yield url_of(process)
    finally:
        process.terminate()
        process.wait()


HEAD = (
    f"{'':28} {'clients':>7} {'tokens/s':>9} {'ideal':>9} {'share':>6} {'TTFT p50':>9} {'p95':>9} "
    f"{'ITL p50':>9} {'p99':>9} {'p99.9':>9} {'p99.9/p50':>9} {'client':>7}   (ms)"
)


def row(name: str, clients: int, found: Any, ideal: float | None) -> str:
    """One line of the table."""
    ttft, itl, rate = found["ttft_s"], found["itl_s"], found["output_tokens_per_s"]
    shares = f"{ideal:9.1f} {rate / ideal:6.0%}" if ideal else " " * 16
    cells = [ttft["p50"], ttft["p95"], itl["p50"], itl["p99"], itl["p99.9"]]
    return (
        f"{name:28.28} {clients:>7} {rate:>9.1f} {shares} "
        + " ".join(f"{value * 1e3:>9.1f}" for value in cells)
        + f" {itl['p99.9'] / itl['p50']:>9.1f} {found['client_cpu_share']:>7.0%}"
    )


def median(runs: list[Any], name: str, part: str | None = None) -> float:
    """Over turns."""
    return statistics.median(one[name] if part is None else one[name][part] for one in runs)


def told_ratios(clients: int, ours: list[Any], theirs: dict[str, list[Any]]) -> None:
    """Ours beside every other server's, medians over the turns."""
    rate = median(ours, "output_tokens_per_s")
    say(f"{clients} clients: our tokens/s over theirs; their TTFT in seconds, gaps over the median")
    for name, runs in theirs.items():
        gaps = median(runs, "itl_s", "p99.9") / median(runs, "itl_s", "p50")
        say(
            f"  {name}: {rate / median(runs, 'output_tokens_per_s'):.2f} times; "
            f"TTFT p50 {median(runs, 'ttft_s', 'p50'):.2f} "
            f"p95 {median(runs, 'ttft_s', 'p95'):.2f}; "
            f"gaps p99.9 {gaps:.1f}, longest {median(runs, 'itl_s', 'max'):.2f} s"
        )
    least_s = min(median(runs, "ttft_s", "p50") for runs in theirs.values())
    say(
        f"  our p95 TTFT {median(ours, 'ttft_s', 'p95'):.2f}, the least p50 of theirs {least_s:.2f}"
    )


def options_of() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--concurrency", default="1,4,8,16,32")
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--requests", type=int, default=6, help="least a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() // 10**9 * 10**6)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME[=PROGRAM[:FILE]]",
        help="or NAME=URL of one that runs; NAME is one of " + ", ".join(COMMANDS),
    )
    parser.add_argument("--no-peers", action="store_true")
    return parser.parse_args()


def measure(options: argparse.Namespace, others: list[Server]) -> None:
    """Every number of clients, server after server, in turns."""
    clients = [int(one) for one in options.concurrency.split(",")]
    native = native_rates(options, sorted({min(one, MAX_BATCH) for one in clients}))
    say(
        f"native: reads {native.read_gbps:.1f} GB/s; prefill {native.prefill:,.0f} tokens/s; "
        f"decode by batch {native.decode}"
    )
    say(HEAD)
    with own_server(options) as url:
        for one in clients:
            ours: list[Any] = []
            theirs: dict[str, list[Any]] = {}
            for turn in range(options.turns):
                ours.append(load(options, url, one, "default", turn))
                say(row("insitu", one, ours[-1], native.ideal(options, one)))
                for other in others:
                    other.go_on()
                    found = load(options, other.url, one, other.model, turn)
                    other.stop()
                    theirs.setdefault(other.peer.label, []).append(found)
                    say(row(other.peer.label, one, found, None))
            if theirs:
                told_ratios(one, ours, theirs)


def main() -> None:
    """Start the others, then measure."""
    options = options_of()
    peers = [peer_of(text, options.model) for text in options.peer] or peers_found(options.model)
    most = max(int(one) for one in options.concurrency.split(","))
    setting = Setting(most, options.prompt + options.output + SLACK_TOKENS, options.threads)
    others = [] if options.no_peers else start_all(peers, setting)
    try:
        measure(options, others)
    finally:
        for other in others:
            other.end()


if __name__ == "__main__":
    main()
