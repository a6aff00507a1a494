"""Other servers to load beside ours: how each is started, and what its model is called.

Not here: loads. Always true: a server listens at a free loopback port, and takes no processor but
while it is asked: the others are stopped (SIGSTOP) meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

if TYPE_CHECKING:
    from collections.abc import Callable

_START_S = 600


class PeerUnusable(Exception):
    """A peer that cannot be started, and why."""


@dataclass(frozen=True)
class Peer:
    """What ``--peer NAME[=PROGRAM[:FILE]]`` asks for; an address in place of a program is used."""

    name: str
    program: str
    file: str

    @property
    def label(self) -> str:
        """As a line's title."""
        return f"{self.name} ({os.path.basename(self.file.rstrip('/'))})"


@dataclass(frozen=True)
class Setting:
    """What every server is given: clients at once, tokens a request, threads."""

    clients: int
    context: int
    threads: int


def _llama_server(peer: Peer, port: int, setting: Setting) -> list[str]:
    """llama.cpp's own: continuous batching, a slot a client."""
    threads, clients = str(setting.threads), setting.clients
    return [
        *(peer.program, "--model", peer.file, "--port", str(port), "--alias", "model"),
        *("--parallel", str(clients), "--ctx-size", str(clients * setting.context)),
        *("--cont-batching", "--threads", threads, "--threads-batch", threads),
    ]


def _llama_cpp_python(peer: Peer, port: int, setting: Setting) -> list[str]:
    """The Python package's, which answers one at a time; ``program`` is its Python."""
    return [
        *(peer.program, "-P", "-m", "llama_cpp.server", "--model", peer.file, "--port", str(port)),
        *("--n_ctx", str(setting.context), "--model_alias", "model"),
        *("--interrupt_requests", "False"),  # a request waits for the one before it
        *("--n_threads", str(setting.threads), "--n_threads_batch", str(setting.threads)),
    ]


def _vllm(peer: Peer, port: int, setting: Setting) -> list[str]:
    """vLLM on processors, bfloat16; ``file`` is a folder with a checkpoint."""
    bind = f"VLLM_CPU_OMP_THREADS_BIND=0-{setting.threads - 1}"
    return [
        *("env", "VLLM_CPU_KVCACHE_SPACE=2", "HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", bind),
        *(peer.program, "serve", peer.file, "--port", str(port), "--served-model-name", "model"),
        *("--host", "127.0.0.1", "--dtype", "bfloat16", "--max-model-len", str(setting.context)),
        *("--max-num-seqs", str(setting.clients)),
    ]


COMMANDS: dict[str, Callable[[Peer, int, Setting], list[str]]] = {
    "llama-server": _llama_server,
    "llama-cpp-python": _llama_cpp_python,
    "vllm": _vllm,
}


def peer_of(text: str, model: str) -> Peer:
    """``NAME``, ``NAME=PROGRAM``, ``NAME=PROGRAM:FILE`` or ``NAME=URL``."""
    name, _, program = text.partition("=")
    if program.startswith(("http://", "https://")):
        return Peer(name, program, program)
    program, _, file = program.partition(":")
    if name not in COMMANDS:
        raise SystemExit(f"{name!r} is none of {', '.join(COMMANDS)}, or needs an address")
    return Peer(name, program or name, file or model)


def found(model: str) -> list[Peer]:
    """Peers that need nothing but the model's own file and are on the path."""
    return [Peer(name, name, model) for name in ("llama-server",) if shutil.which(name)]


class Server:
    """A running peer; stopped until it is asked."""

    def __init__(self, peer: Peer, setting: Setting) -> None:
        """Start it and wait until it lists its model."""
        self.peer = peer
        self._process: subprocess.Popen[bytes] | None = None
        if peer.program.startswith("http"):
            self.url, self.model = peer.program, ""
            return
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        self.url, self.model = f"http://127.0.0.1:{port}", "model"
        command = COMMANDS[peer.name](peer, port, setting)
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command, stdout=quiet, stderr=quiet, start_new_session=True
            )
        except OSError as error:
            raise PeerUnusable(f"{peer.program} cannot be run: {error.strerror}") from None
        self._wait()
        self.stop()

    def _wait(self) -> None:
        process = self._process
        assert process is not None
        end_s = time.monotonic() + _START_S
        while True:
            try:
                urlopen(f"{self.url}/v1/models", timeout=1).close()
                return
            except (URLError, OSError):
                if process.poll() is not None or time.monotonic() > end_s:
                    self.end()
                    raise PeerUnusable(f"{self.peer.label} did not start") from None
                time.sleep(0.2)

    def stop(self) -> None:
        """Take its processors away."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Give them back."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End it and all its processes."""
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        if self._process is not None:
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()

    def _signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)


def start_all(peers: list[Peer], setting: Setting) -> list[Server]:
    """Those that start; why others do not is said."""
    servers = []
    for peer in peers:
        try:
            servers.append(Server(peer, setting))
        except PeerUnusable as error:
            sys.stderr.write(f"{error}\n")
    return servers
