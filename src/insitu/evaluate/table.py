"""The report as lines of text.

Not here: the figures themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from insitu.evaluate.figures import Bin, Report


def lines(report: Report, against: str | None) -> list[str]:
    """Name and value a line, then the calibration's table."""
    rows = [("tokens", f"{report.tokens:,}"), ("perplexity", f"{report.perplexity:.4f}")]
    if against is not None:
        rows += _compared(report, against)
    rows.append(("calibration error", f"{report.calibration_error:.4f}"))
    width = max(len(name) for name, _ in rows)
    listed = [f"{name:<{width}}  {value}" for name, value in rows]
    head = f"{'likeliest token':<16}{'positions':>10}{'mean':>9}{'came':>9}"
    return [*listed, "", head, *map(_bin, report.calibration)]


def _compared(report: Report, against: str) -> list[tuple[str, str]]:
    values = (report.kl_mean, report.kl_p99, report.kl_max, report.top1_agreement)
    mean, p99, most, agreed = (0.0 if value is None else value for value in values)
    theirs = report.against_perplexity or 0.0
    return [
        ("against", f"{against} (perplexity {theirs:.4f})"),
        ("KL mean", f"{mean:.6f}"),
        ("KL p99", f"{p99:.6f}"),
        ("KL max", f"{most:.6f}"),
        ("top-1 agreement", f"{100 * agreed:.2f} %"),
    ]


def _bin(one: Bin) -> str:
    span = f"{one.low:.1f} to {one.high:.1f}"
    if one.confidence is None or one.accuracy is None:
        return f"{span:<16}{0:>10}{'-':>9}{'-':>9}"
    return f"{span:<16}{one.count:>10,}{one.confidence:>9.3f}{one.accuracy:>9.3f}"
