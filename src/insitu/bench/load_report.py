"""A load's figures, and those of batches, as tables for a terminal and as a picture.

Not here: numbers. matplotlib is imported when it draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from insitu.bench.figures import PERCENTILES, gaps_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from insitu.bench.figures import Latencies
    from insitu.bench.offline import BatchLatency
    from insitu.bench.serve import Run


def load_tables(run: Run, figures: Latencies) -> Group:
    """What the server did, then how long requests waited."""
    load, target = run.load, run.target
    pace = f"{load.concurrency} at once"
    if load.rate_per_s is not None:
        pace = f"{load.rate_per_s:g} a second, at random times"
    head = (
        f"{target.model} at {target.url}: {figures.num_finished} of {figures.num_requests} "
        f"requests in {figures.wall_s:.1f} s, {pace}"
    )
    rates = (
        f"{figures.output_tokens_per_s:,.1f} output tokens/s, "
        f"{figures.prompt_tokens / figures.wall_s:,.1f} prompt tokens/s, "
        f"{figures.num_finished / figures.wall_s:,.2f} requests/s; this client took "
        f"{figures.client_cpu_share:.0%} of a processor"
    )
    parts: list[Text | Table] = [Text(head), Text(rates)]
    if figures.goodput_per_s is not None:
        parts.append(Text(f"goodput {figures.goodput_per_s:,.2f} requests/s within the bounds"))
    parts.append(_spreads(figures))
    parts += [Text(f"{count} x {error}") for error, count in sorted(figures.errors.items())]
    return Group(*parts)


def _spreads(figures: Latencies) -> Table:
    table = Table(title="milliseconds", title_justify="left")
    table.add_column("")
    for name in ("mean", *(f"p{p:g}" for p in PERCENTILES), "max"):
        table.add_column(name, justify="right")
    for name, one in figures.spreads.items():
        values = (one.mean, *one.percentiles, one.largest)
        title = name.removesuffix("_s").upper()
        table.add_row(title, *(f"{value * 1e3:,.1f}" for value in values))
    return table


def batch_table(rows: Sequence[BatchLatency]) -> Table:
    """One line a batch size."""
    table = Table()
    for name in ("batch", "seconds", "fastest", "slowest", "output tokens/s"):
        table.add_column(name, justify="right")
    for row in rows:
        values = row.as_json()
        table.add_row(
            str(row.batch),
            *(f"{values[name]:.3f}" for name in ("seconds", "fastest_s", "slowest_s")),
            f"{values['output_tokens_per_s']:,.1f}",
        )
    return table


def draw_load(run: Run, path: Path) -> None:
    """The share of requests (TTFT) and of gaps (ITL) that took at most so long."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    finished = [one for one in run.answers if not one.error]
    values = {
        "TTFT": [one.chunk_times_s[0] for one in finished],
        "ITL": [gap for one in finished for gap in gaps_s(one)],
    }
    figure = Figure(figsize=(9, 4), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for axes, (name, seconds) in zip(panels, values.items(), strict=True):
        times = sorted(value * 1e3 for value in seconds)
        axes.step(times, [(i + 1) / len(times) for i in range(len(times))], where="post")
        axes.set(xlabel=f"{name}, ms", ylabel="share", xscale="log", ylim=(0, 1.02))
    figure.suptitle(f"{run.target.model}, {len(finished)} requests")
    figure.savefig(path)
