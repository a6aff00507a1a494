"""What a process holds that cannot be given back or shared, and what its plan says of that.

Not here: any assertion.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


def held_bytes(process_id: int) -> int:
    """Anonymous and shared memory of a process."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines if ":" in line)
    return 1024 * sum(int(sizes[key].split()[0]) for key in ("RssAnon", "RssShmem"))


def plan_of(model: Path, *flags: str) -> dict[str, Any]:
    """What ``insitu plan`` says with these flags."""
    command = [sys.executable, "-m", "insitu", "plan", str(model), *flags, "--json"]
    plan: dict[str, Any] = json.loads(subprocess.check_output(command, timeout=60))
    return plan


class MemoryWatch(threading.Thread):
    """Follows what a process holds, keeping the most."""

    def __init__(self, process_id: int, every_s: float = 0.05) -> None:
        super().__init__(daemon=True)
        self._process_id = process_id
        self._every_s = every_s
        self._is_over = threading.Event()
        self.most_bytes = 0

    def run(self) -> None:
        """Look until told to end."""
        while not self._is_over.wait(self._every_s):
            self.most_bytes = max(self.most_bytes, held_bytes(self._process_id))

    def end(self) -> int:
        """The most that was seen."""
        self._is_over.set()
        self.join()
        return self.most_bytes
