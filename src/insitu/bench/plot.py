"""A roofline: operations a second against operations a byte, under what the machine allows.

Not here: measuring. matplotlib is an extra; only this file imports it, and only when it draws.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from insitu.bench.errors import BenchError

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.bench.report import Report, Row

FORMATS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse before anything is measured what could not be drawn after."""
    if path.suffix.lower() not in FORMATS:
        raise BenchError(f"--plot {path}: the name ends in one of {', '.join(FORMATS)}.")
    if not path.parent.is_dir():
        raise BenchError(f"--plot {path}: there is no folder {path.parent}.")
    if find_spec("matplotlib") is None:
        raise BenchError("--plot needs matplotlib: pip install 'insitu[bench]'.")


def draw(report: Report, model_name: str, path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes: Any = figure.subplots()
    _roof(axes, report)
    for phase, marker in (("decode", "o"), ("prefill", "s")):
        rows = [row for row in report.rows if row.case.phase == phase]
        if rows:
            x, y = [_intensity(row) for row in rows], [_gops(row) for row in rows]
            axes.plot(x, y, marker, label=phase)
        for row in rows:
            count = row.case.batch if phase == "decode" else row.case.tokens
            label = f"{count} at {row.case.context}"
            place = {"xytext": (4, -8), "textcoords": "offset points", "fontsize": 6}
            axes.annotate(label, (_intensity(row), _gops(row)), **place)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="operations of matrices per byte read", ylabel="10^9 operations a second")
    axes.set_title(f"{model_name}, {report.machine}")
    axes.legend(loc="lower right")
    figure.savefig(path)


def _roof(axes: Any, report: Report) -> None:
    """Bandwidth's slope up to the peak of the arithmetic the model uses."""
    rate, peak = report.read_bytes_per_s / 1e9, report.peaks.int8 / 1e9
    points = [_intensity(row) for row in report.rows]
    least, most = min([*points, peak / rate]) / 2, max([*points, peak / rate]) * 2
    label = f"reads {rate:.1f} GB/s, int8 {peak:.0f} GOPS"
    axes.plot([least, peak / rate, most], [least * rate, peak, peak], "k-", label=label)


def _intensity(row: Row) -> float:
    return row.work.matmul_ops / row.work.read_bytes


def _gops(row: Row) -> float:
    return row.work.matmul_ops / row.seconds / 1e9
