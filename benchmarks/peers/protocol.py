"""What an engine that is compared answers: a JSON line in, a JSON line out, on its own process.

A peer's script defines a class with ``name``, ``version``, ``prefill`` and ``decode``, and hands it
to ``serve``. Only the standard library is imported here: a peer runs in an environment of its own.

Always true: seconds are of the engine's own work, after one run that was not timed.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Peer(Protocol):
    """One engine with a model loaded."""

    name: str
    version: str

    def prefill(self, tokens: int) -> tuple[int, float]:
        """Compute a prompt of so many tokens from an empty cache: (tokens, seconds)."""
        ...

    def decode(self, batch: int, context: int, tokens: int) -> tuple[int, float]:
        """``batch`` sequences of ``context`` tokens gain ``tokens`` each: (all tokens, seconds)."""
        ...


def serve(load: Callable[[str, int, int], Peer]) -> None:
    """``script MODEL THREADS MAX_BATCH``: load, say so, answer until standard input ends.

    Whatever an engine prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    model, threads, max_batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    peer = load(model, threads, max_batch)
    _say(answers, {"name": peer.name, "version": peer.version})
    for line in sys.stdin:
        question: dict[str, Any] = json.loads(line)
        do = getattr(peer, question.pop("do"))
        amount, seconds = do(**question)
        _say(answers, {"amount": amount, "seconds": seconds})


def _say(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
