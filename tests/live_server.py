"""A real ``insitu serve`` in a process of its own, for tests that go through HTTP.

The server binds to loopback on a free port and is ended when the context closes. Not here: any
assertion.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_TIMEOUT_S = 120


class LiveServer:
    """A running server: its URL, and the few calls that tests share."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.url = url
        self.process = process
        # A connection each: one that was left idle may be closed by the server as it is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=url, timeout=300, trust_env=False, limits=limits)

    def complete(self, prompt_ids: list[int], **fields: Any) -> dict[str, Any]:
        """The first choice of a greedy completion of token ids, with ids and log-probabilities."""
        body = {
            "model": "default",
            "prompt": prompt_ids,
            "temperature": 0,
            "seed": 0,
            "logprobs": 5,
            "return_token_ids": True,
            **fields,
        }
        answer = self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        choice: dict[str, Any] = answer.json()["choices"][0]
        return choice


@contextmanager
def live_server(model: Path | str, *flags: str, isa: str | None = None) -> Iterator[LiveServer]:
    """Start ``insitu serve`` on a free loopback port and wait until it says where it listens."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment.pop("INSITU_ISA", None)
    if isa is not None:
        environment["INSITU_ISA"] = isa
    command = [sys.executable, "-m", "insitu", "serve", str(model), "--port", "0", *flags]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        server = LiveServer(_announced_url(process), process)
        watchdog.cancel()
        drain = threading.Thread(target=_discard_output, args=(process,), daemon=True)
        drain.start()
        try:
            yield server
        finally:
            server.client.close()
    finally:
        watchdog.cancel()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _announced_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        for word in line.split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/.,").removesuffix("/v1")
    raise AssertionError("the server ended before it listened:\n" + "".join(lines))


def _discard_output(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    try:
        for _ in process.stdout:
            pass
    except ValueError:
        return  # closed by the context manager while this thread was reading
