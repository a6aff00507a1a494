"""A server of our own to measure: started, and where it listens."""

from __future__ import annotations

import subprocess
import sys


def start(model: str, *options: str) -> subprocess.Popen[str]:
    """``insitu serve`` on a free loopback port; who starts it ends it."""
    command = [sys.executable, "-m", "insitu", "serve", model, "--port", "0", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def url_of(process: subprocess.Popen[str]) -> str:
    """The address it says it listens at, once it does."""
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("http://"):
                return word
    raise SystemExit("the server ended before it listened")
