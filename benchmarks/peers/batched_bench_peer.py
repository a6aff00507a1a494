"""llama.cpp, or a fork of it, by the ``llama-batched-bench`` that was built beside it.

``python batched_bench_peer.py MODEL THREADS BATCH BINARY``: each question is a run of the program,
which times prefill and decode itself and prints a table; loading is not in it.
"""

from __future__ import annotations

import re
import subprocess
import sys

from protocol import serve

_LEN = 1024


class BatchedBench:
    """Asks the program and reads the last row of its table."""

    def __init__(self, model: str, threads: int, max_batch: int) -> None:
        del max_batch
        self._binary, self._model, self._threads = sys.argv[4], model, threads
        self.name, self.version = "llama-batched-bench", self._binary
        self.prefill(64)

    def prefill(self, tokens: int) -> tuple[int, float]:
        """One prompt."""
        return tokens, self._run(1, tokens, 1)[0]

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """A token of every sequence a call."""
        return batch * tokens, self._run(batch, context, tokens)[1]

    def _run(self, batch: int, prompt: int, tokens: int) -> tuple[float, float]:
        """Seconds of prefill and of decode."""
        sizes = {"-npl": batch, "-npp": prompt, "-ntg": tokens, "-c": batch * _LEN, "-ub": 512}
        threads = {"-t": self._threads, "-tb": self._threads}
        options = [str(one) for pair in (sizes | threads).items() for one in pair]
        command = [self._binary, "-m", self._model, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        rows = re.findall(r"^\|( *[\d.]+ *\|.*)\|$", done.stdout + done.stderr, re.MULTILINE)
        if not rows:
            raise SystemExit(f"{self._binary}: {done.stderr[-500:]}")
        _, _, _, _, prefill_s, _, decode_s, *_ = (float(cell) for cell in rows[-1].split("|"))
        return prefill_s, decode_s


if __name__ == "__main__":
    serve(BatchedBench)
