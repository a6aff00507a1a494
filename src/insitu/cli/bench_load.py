"""``bench serve`` and ``bench latency``: a server under load, and batches without one.

Not here: measuring (``bench``). Standard output carries the table or the JSON and nothing else.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from insitu.cli.bar import Counting
from insitu.cli.flags import read_counts, settings_flags
from insitu.settings.fields import ENGINE_FIELDS, STORE_FIELDS

if TYPE_CHECKING:
    from insitu.bench.figures import Bounds
    from insitu.bench.load import Load
    from insitu.settings.fields import Settings

_PLOT = click.Path(path_type=Path)
_COUNT = click.IntRange(1, 10**6)
_LATENCY_FIELDS = tuple(
    name for name in ENGINE_FIELDS if name not in {"max_num_seqs", "prefix_caching"}
)


@click.command("serve")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--model", metavar="NAME", help="[default: the first that the server lists]")
@click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="One key.")
@click.option("--num-requests", type=_COUNT, default=100, show_default=True)
@click.option("--concurrency", type=_COUNT, help="So many at once [default: 16].")
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Requests a second, at random times."
)
@click.option("--lengths", type=click.Choice(["fixed", "sharegpt"]), default="fixed")
@click.option("--input-tokens", type=_COUNT, default=200, show_default=True)
@click.option("--output-tokens", type=_COUNT, default=128, show_default=True)
@click.option("--max-tokens", type=_COUNT, default=2048, help="A drawn length is cut to this.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--stop-at-eos", is_flag=True, help="Do not send `ignore_eos`.")
@click.option("--timeout-s", type=click.FloatRange(0, min_open=True), default=600.0)
@click.option("--max-ttft-ms", type=float, help="Goodput: a good request's longest TTFT.")
@click.option("--max-tpot-ms", type=float, help="Goodput: ... longest mean time a token.")
@click.option("--max-e2e-ms", type=float, help="Goodput: ... longest time in all.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--plot", type=_PLOT, metavar="FILE", help="Draw TTFT and ITL (extra `bench`).")
def serve_command(url: str, **options: Any) -> None:
    """Load the OpenAI-compatible server at URL and time its answers."""
    from insitu.bench.client import Target
    from insitu.bench.figures import latencies
    from insitu.bench.load_report import draw_load, load_tables
    from insitu.bench.plot import check_plot
    from insitu.bench.serve import first_model, run_load

    load = _load_of(options)
    if options["plot"] is not None:
        check_plot(options["plot"])
    key = _key_of(options["api_key_file"])
    model = options["model"] or first_model(url, key)
    target = Target(url, model, key, options["timeout_s"], ignores_eos=not options["stop_at_eos"])
    with Counting() as watch:
        run = run_load(target, load, watch)
    figures = latencies(run, _bounds_of(options))
    if options["is_json"]:
        click.echo(json.dumps(figures.as_json(), indent=1))
    else:
        print_tables(load_tables(run, figures))
    if options["plot"] is not None and figures.num_finished:
        draw_load(run, options["plot"])
    if figures.num_finished < figures.num_requests:
        sys.exit(1)


def _load_of(options: dict[str, Any]) -> Load:
    from insitu.bench.load import Load

    if options["rate"] is not None and options["concurrency"] is not None:
        raise click.UsageError("--rate and --concurrency: give one of them.")
    is_closed = options["rate"] is None
    names = ("num_requests", "lengths", "input_tokens", "output_tokens", "max_tokens", "seed")
    return Load(
        rate_per_s=options["rate"],
        concurrency=(options["concurrency"] or 16) if is_closed else None,
        **{name: options[name] for name in names},
    )


def _bounds_of(options: dict[str, Any]) -> Bounds:
    from insitu.bench.figures import Bounds

    bounds = (options["max_ttft_ms"], options["max_tpot_ms"], options["max_e2e_ms"])
    return Bounds(*(None if one is None else one / 1e3 for one in bounds))


def _key_of(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        words = path.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--api-key-file {path}: {error}") from error
    if len(words) != 1:
        raise click.UsageError(f"--api-key-file {path}: one key is wanted.")
    return words[0].rpartition(":")[2]


@click.command("latency")
@click.argument("model")
@click.option("--batch", "batches", metavar="N,...", default="1,4,16", show_default=True)
@click.option("--input-tokens", type=_COUNT, default=32, show_default=True)
@click.option("--output-tokens", type=_COUNT, default=128, show_default=True)
@click.option("--repeats", type=_COUNT, default=5, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_flags((*STORE_FIELDS, *_LATENCY_FIELDS))
def latency_command(settings: Settings, model: str, **options: Any) -> None:
    """Time batches of prompts to MODEL in this process, from the call to the last token."""
    from insitu.bench.load_report import batch_table
    from insitu.bench.offline import batch_latencies
    from insitu.cli.opening import locate
    from insitu.engine.loop import tune_process

    batches = read_counts("--batch", options["batches"], 1024)
    located = locate(model, settings)
    tune_process()
    with Counting() as watch:
        rows = batch_latencies(
            located.path,
            batches,
            input_tokens=options["input_tokens"],
            output_tokens=options["output_tokens"],
            repeats=options["repeats"],
            settings={name: getattr(settings, name) for name in _LATENCY_FIELDS},
            watch=watch,
        )
    if options["is_json"]:
        click.echo(json.dumps([row.as_json() for row in rows], indent=1))
    else:
        print_tables(batch_table(rows))


def print_tables(what: Any) -> None:
    """Write what rich can draw to standard output."""
    from rich.console import Console

    # Lines are not cut where there is no terminal to cut them for.
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, markup=False).print(what)
