"""A batch's state, and its form in OpenAI's API.

Not here: what moves it from state to state (``runner``). Always true: what ended stays as it ended.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from insitu.server.batches.limits import WINDOW_S
from insitu.server.batches.store import new_id

ENDED = {"completed", "failed", "cancelled", "expired"}


@dataclass(slots=True)
class Batch:
    """One batch; ``output_id`` and ``error_id`` are drawn at once, and told when it has ended."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None
    id: str = field(default_factory=lambda: new_id("batch_"))
    output_id: str = field(default_factory=lambda: new_id("file-"))
    error_id: str = field(default_factory=lambda: new_id("file-"))
    status: str = "validating"
    times: dict[str, int] = field(default_factory=lambda: {"created_at": int(time.time())})
    errors: list[dict[str, Any]] | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_lines: int = 0
    num_completed: int = 0
    num_failed: int = 0

    def become(self, status: str) -> None:
        """Enter a state, and note when."""
        self.status = status
        self.times.setdefault(f"{status}_at", int(time.time()))

    @property
    def expires_at(self) -> int:
        """When what is not done yet is given up."""
        return self.times["created_at"] + WINDOW_S

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ENDED

    def state(self) -> dict[str, Any]:
        """What is kept on disk."""
        return asdict(self)

    def wire(self, model: str) -> dict[str, Any]:
        """The batch as an answer."""
        names = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling")
        errors = None if self.errors is None else {"object": "list", "data": self.errors}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": model,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.times["created_at"],
            "expires_at": self.expires_at,
            **{f"{name}_at": self.times.get(f"{name}_at") for name in (*names, "cancelled")},
            "request_counts": {
                "total": self.num_lines,
                "completed": self.num_completed,
                "failed": self.num_failed,
            },
            "metadata": self.metadata,
        }
