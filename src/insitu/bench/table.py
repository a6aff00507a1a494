"""The report as tables for a terminal.

Not here: numbers. Shares are of the ceiling that binds: reading (r) or integer arithmetic (a).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.bench.cases import Case
    from insitu.bench.report import OperatorRow, Report, Row

# Operators that take less of a step than this share one line.
_SMALL = 0.02


def tables(report: Report) -> Group:
    """Ceilings, rows, operators, and what was left out."""
    peaks = report.peaks
    head = (
        f"{report.machine}: reads {report.read_bytes_per_s / 1e9:.1f} GB/s (median of the reads "
        f"between steps), int8 {peaks.int8 / 1e9:.0f} GOPS, float32 {peaks.float32 / 1e9:.0f} "
        "GFLOPS on registers"
    )
    parts: list[Text | Table] = [Text(head)]
    for phase in ("decode", "prefill"):
        rows = [row for row in report.rows if row.case.phase == phase]
        if rows:
            parts.append(_rows(phase, rows))
    parts.append(_operators(report))
    parts += [Text(f"not measured: {one.case}: {one.reason}") for one in report.skipped]
    return Group(*parts)


def _rows(phase: str, rows: Sequence[Row]) -> Table:
    table = _table(phase, "context", "batch" if phase == "decode" else "tokens")
    for name in ("tokens/s", "ms", "read GB/s", "of ceiling", ""):
        table.add_column(name, justify="right")
    for row in rows:
        case = row.case
        table.add_row(
            str(case.context),
            str(case.batch if phase == "decode" else case.tokens),
            f"{row.tokens_per_s:,.1f}",
            f"{row.seconds * 1e3:,.2f}",
            f"{row.read_bytes_per_s / 1e9:.1f}",
            f"{row.share_of_ceiling:.2f}",
            row.binds,
        )
    return table


def _operators(report: Report) -> Table:
    """One column a case is too wide: the first, the last and the largest batch of decode, and
    the middle prefill, tell what changes."""
    cases = _telling([row.case for row in report.rows])
    table = _table("where the time goes: share of step (of the operator's own ceiling)", "operator")
    for case in cases:
        table.add_column(str(case), justify="right")
    by_case = {case: {} for case in cases}  # type: dict[Case, dict[str, OperatorRow]]
    for row in report.operators:
        if row.case in by_case:
            by_case[row.case][row.operator] = row
    names = list(dict.fromkeys(row.operator for row in report.operators if row.case in by_case))
    large = [name for name in names if _is_large(name, by_case)]
    for name in large:
        table.add_row(name, *(_cell(rows.get(name)) for rows in by_case.values()))
    rest = [
        sum(row.share_of_step for name, row in rows.items() if name not in large)
        for rows in by_case.values()
    ]
    table.add_row("all others", *(f"{share:.0%}" for share in rest))
    return table


def _is_large(name: str, by_case: dict[Case, dict[str, OperatorRow]]) -> bool:
    return any(name in rows and rows[name].share_of_step >= _SMALL for rows in by_case.values())


def _cell(row: OperatorRow | None) -> str:
    if row is None:
        return ""
    own = "" if row.share_of_ceiling is None else f" ({row.share_of_ceiling:.2f})"
    return f"{row.share_of_step:.0%}{own}"


def _telling(cases: list[Case]) -> list[Case]:
    decode = [case for case in cases if case.phase == "decode"]
    prefill = [case for case in cases if case.phase == "prefill"]
    chosen = (
        [decode[0], max(decode, key=lambda c: (c.batch, -c.context)), decode[-1]] if decode else []
    )
    alone = [case for case in decode if case.batch == decode[0].batch]
    chosen += alone[-1:] + prefill[len(prefill) // 2 : len(prefill) // 2 + 1]
    return list(dict.fromkeys(chosen))


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name == "operator" else "right")
    return table
