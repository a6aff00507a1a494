"""Values a server is started with. Not here: flags or their defaults' reasons (``settings``).

Always true: a ``ServerOptions`` never changes, and every limit in it is positive.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.types import Caller, Gate

if TYPE_CHECKING:
    from pathlib import Path

Authenticate = Callable[[str | None], Caller | None]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def say_nothing(_: int) -> None:
    """Leave a drain unannounced."""


def write_line(line: str) -> None:
    """Write one line to standard output at once, so that a waiting parent sees it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where to listen, whom to answer, and how much of anything one caller may hold.

    ``authenticate`` takes the presented bearer key (None when there is none) and answers who it is,
    or None for a stranger; it compares hashes in constant time. Without it nobody is asked.
    ``gate`` limits what each caller may ask for. ``batch_dir`` keeps files and batches, which are
    off without it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    authenticate: Authenticate | None = None
    gate: Gate | None = None
    batch_dir: Path | None = None
    max_body_bytes: int = 8 * 2**20
    max_header_bytes: int = 64 * 2**10
    body_timeout_s: float = 30.0
    keep_alive_timeout_s: float = 30.0
    request_timeout_s: float | None = None
    drain_grace_s: float = 30.0
    retry_after_s: int = 5
    on_ready: Callable[[str], None] = write_line
    on_drain: Callable[[int], None] = say_nothing  # gets how many requests are waited for

    @property
    def is_private(self) -> bool:
        """Whether only pages and programs of this machine may ask (loopback, no keys)."""
        return self.authenticate is None and is_loopback(self.host)
