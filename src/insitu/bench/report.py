"""What was measured: rows with their shares of a ceiling, and the JSON that says so.

Not here: measuring, drawing. A share is the least time that ceilings allow, over that taken.

Always true: a share compares a step with the raw read just before it (medians of such pairs); the
register peak is the best of the whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from insitu.bench.cases import Case, Skipped
    from insitu.bench.work import Work


@dataclass(frozen=True, slots=True)
class Peaks:
    """Operations a second on registers alone."""

    int8: float
    float32: float


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Where a case's time went: one operator, all layers together."""

    case: Case
    operator: str
    ms: float
    share_of_step: float
    share_of_ceiling: float | None  # None: nothing was counted for it

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        where = _where(self.case)
        return {
            "phase": self.case.phase,
            **where,
            "operator": self.operator,
            "ms": _rounded(self.ms),
            "share_of_step": _rounded(self.share_of_step),
            "share_of_ceiling": _rounded(self.share_of_ceiling),
        }


@dataclass(frozen=True, slots=True)
class Row:
    """One case: seconds of its steps (median), and the ceiling that binds."""

    case: Case
    work: Work
    seconds: float
    read_bytes_per_s: float  # median of the raw reads between its steps
    share_of_ceiling: float
    binds: str  # "read" or "arithmetic"

    @property
    def tokens_per_s(self) -> float:
        """New tokens, all sequences together."""
        return self.case.batch * self.case.tokens / self.seconds

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: a decode row has its step's time besides."""
        row: dict[str, Any] = {**_where(self.case), "tokens_per_s": _rounded(self.tokens_per_s)}
        if self.case.phase == "decode":
            row["ms_per_step"] = _rounded(self.seconds * 1e3)
        return {**row, "share_of_ceiling": _rounded(self.share_of_ceiling)}


@dataclass(frozen=True, slots=True)
class Report:
    """A whole run."""

    machine: str
    read_bytes_per_s: float  # median over all rows
    peaks: Peaks
    rows: tuple[Row, ...]
    operators: tuple[OperatorRow, ...]
    skipped: tuple[Skipped, ...]

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "ceilings": {
                "read_gbps": _rounded(self.read_bytes_per_s / 1e9),
                "int8_gops": _rounded(self.peaks.int8 / 1e9),
            },
            "decode": [row.as_json() for row in self.rows if row.case.phase == "decode"],
            "prefill": [row.as_json() for row in self.rows if row.case.phase == "prefill"],
            "operators": [row.as_json() for row in self.operators],
        }


def least_seconds(work: Work, read_bytes_per_s: float, peaks: Peaks) -> tuple[float, str]:
    """The longer of reading and of multiplying matrices, and which it is.

    Attention's own arithmetic is no part of a step's ceiling; its operator row counts it.
    """
    reading = work.read_bytes / read_bytes_per_s
    arithmetic = work.int8_ops / peaks.int8 + work.float32_ops / peaks.float32
    return max((reading, "read"), (arithmetic, "arithmetic"))


def least_operator_seconds(work: Work, read_bytes_per_s: float, peaks: Peaks) -> float:
    """As ``least_seconds``, for one operator; that of attention is float32 arithmetic."""
    seconds, _ = least_seconds(work, read_bytes_per_s, peaks)
    return max(seconds, work.attention_ops / peaks.float32)


def _where(case: Case) -> dict[str, int]:
    count = ("batch", case.batch) if case.phase == "decode" else ("tokens", case.tokens)
    return {count[0]: count[1], "context": case.context}


def _rounded(value: float | None) -> float | None:
    """Four significant digits: more is noise."""
    return None if value is None else float(f"{value:.4g}")
