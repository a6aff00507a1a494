"""Seconds from starting ``insitu serve`` to the first streamed token, and memory against the plan.

    python benchmarks/first_token.py smollm2-135m --runs 5

Prints each run, the medians, and the same start of an empty Python process for scale. Not a gate:
machines differ, and a cold file cache costs what the disk costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
from serving import start, url_of

BODY = {"model": "default", "prompt": "The capital of France is", "max_tokens": 16, "stream": True}


def first_token_s(model: str) -> tuple[float, int]:
    """One start: seconds to the first token, and the bytes of anonymous memory after an answer."""
    started = time.perf_counter()
    process = start(model)
    try:
        url = url_of(process)
        client = httpx.Client(base_url=url, trust_env=False, timeout=60)
        with client, client.stream("POST", "/completions", json=BODY) as answer:
            answer.raise_for_status()
            chunks = answer.iter_lines()
            next(chunks)
            elapsed = time.perf_counter() - started
            for _ in chunks:
                pass
        return elapsed, _anonymous_bytes(process.pid)
    finally:
        process.terminate()
        process.communicate()


def _anonymous_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    sizes = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return 1024 * sum(int(sizes[key].split()[0]) for key in ("RssAnon", "RssShmem"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    runs = [first_token_s(options.model) for _ in range(options.runs)]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    result = {
        "first_token_s": [round(seconds, 3) for seconds, _ in runs],
        "median_s": round(statistics.median(seconds for seconds, _ in runs), 3),
        "empty_python_s": round(time.perf_counter() - started, 3),
        "anonymous_mib": round(statistics.median(size for _, size in runs) / 2**20, 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
