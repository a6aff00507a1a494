"""A server under load beside what its kernels alone would give, and beside another server.

    python benchmarks/load.py smollm2-135m --concurrency 1,4,8,16,32
    python benchmarks/load.py MODEL.gguf --concurrency 16 --peer venv-llama/bin/python

In one run ``insitu bench native`` (caches warm) gives prefill and decode rates, ``insitu serve`` is
started, ``insitu bench serve`` loads it. With ``prompt`` tokens in and ``output`` tokens out,

    ideal = output / (prompt / prefill rate + output / decode rate)

output tokens a second, the decode rate being that of a batch as large as the number of clients (at
most 16) at the context in the middle of an answer. ``--peer`` is a Python that has llama-cpp-python
with its server, which is loaded in the same way after it. Not a gate.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from serving import start, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BATCH = 16
_START_S = 120


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


def native_rates(options: argparse.Namespace, batches: list[int]) -> tuple[float, dict[int, float]]:
    """Prompt tokens a second, and output tokens a second by batch."""
    context = options.prompt + options.output // 2
    report = insitu(
        *("bench", "native", options.model, "--warm", "--prefill", str(options.prompt)),
        *("--batch", ",".join(map(str, batches)), "--context", str(context)),
        *(("--threads", str(options.threads)) if options.threads else ()),
    )
    prefill = next(row["tokens_per_s"] for row in report["prefill"] if row["context"] == 0)
    return prefill, {row["batch"]: row["tokens_per_s"] for row in report["decode"]}


def load(options: argparse.Namespace, url: str, clients: int, model: str) -> Any:
    """Figures of a closed loop."""
    return insitu(
        *("bench", "serve", url, "--model", model, "--concurrency", str(clients)),
        *("--num-requests", str(max(clients, options.requests) * options.rounds)),
        *("--input-tokens", str(options.prompt), "--output-tokens", str(options.output)),
        *("--seed", str(clients)),  # prompts that no load before had
    )


@contextmanager
def own_server(options: argparse.Namespace) -> Iterator[str]:
    """A server of ours; its address."""
    threads = ("--threads", str(options.threads)) if options.threads else ()
    process = start(options.model, *threads)
    try:
        yield url_of(process)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def peer_server(options: argparse.Namespace) -> Iterator[str]:
    """llama-cpp-python's server with the same file; its address."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    command = [options.peer, "-P", "-m", "llama_cpp.server", "--model", options.model]
    command += ["--port", str(port), "--n_ctx", "2048", "--model_alias", "model"]
    command += ["--interrupt_requests", "False"]  # a request waits for the one before it
    if options.threads:
        command += ["--n_threads", str(options.threads), "--n_threads_batch", str(options.threads)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    url = f"http://127.0.0.1:{port}"
    try:
        end_s = time.monotonic() + _START_S
        while True:
            try:
                urlopen(f"{url}/v1/models", timeout=1).close()
                break
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > end_s:
                    raise SystemExit("the peer's server did not start") from None
                time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def row(clients: int, found: Any, output: int, ideal: float | None) -> str:
    """One line of the table."""
    ttft, itl = found["ttft_s"], found["itl_s"]
    # Of a server that tells no usage in a stream every answer counts as whole.
    whole = found["finished"] * output / found["wall_s"]
    rate = found["output_tokens_per_s"] or whole
    share = f"{rate / ideal:8.0%}" if ideal else " " * 8
    cells = [ttft["p50"], ttft["p95"], itl["p50"], itl["p99"], itl["p99.9"]]
    return (
        f"{clients:>7} {rate:>9.1f} {ideal or 0:>9.1f} {share} "
        + " ".join(f"{value * 1e3:>9.1f}" for value in cells)
        + f" {itl['p99.9'] / itl['p50']:>9.1f} {found['client_cpu_share']:>7.0%}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--concurrency", default="1,4,8,16,32")
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=6, help="least a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer", metavar="PYTHON")
    options = parser.parse_args()
    clients = [int(one) for one in options.concurrency.split(",")]
    batches = sorted({min(one, MAX_BATCH) for one in clients})
    prefill, decode = native_rates(options, batches)
    say(f"native: prefill {prefill:,.0f} tokens/s; decode at batch " + str(decode))
    say(
        f"{'clients':>7} {'tokens/s':>9} {'ideal':>9} {'share':>8} {'TTFT p50':>9} {'p95':>9} "
        f"{'ITL p50':>9} {'p99':>9} {'p99.9':>9} {'p99.9/p50':>9} {'client':>7}   (ms)"
    )
    with own_server(options) as url:
        for one in clients:
            rate = decode[min(one, MAX_BATCH)]
            ideal = options.output / (options.prompt / prefill + options.output / rate)
            found = load(options, url, one, "default")
            say(row(one, found, options.output, ideal))
    if options.peer:
        say("llama-cpp-python's server:")
        with peer_server(options) as url:
            for one in clients:
                found = load(options, url, one, "model")
                say(row(one, found, options.output, None))


if __name__ == "__main__":
    main()
