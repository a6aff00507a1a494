"""The verb ``bench``: measure a model on this machine, against what the machine can do.

Not here: measuring (``bench``). Standard output carries the table or the JSON and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from insitu.cli.bar import Counting
from insitu.cli.bench_load import latency_command, print_tables, serve_command
from insitu.cli.flags import read_counts, settings_flags
from insitu.settings.fields import STORE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.bench.report import Report
    from insitu.settings.fields import Settings

_Command = TypeVar("_Command", bound="Callable[..., Any] | click.Command")
_MAX_BATCH = 1024
_MAX_TOKENS = 2**20


@click.group("bench")
def bench_command() -> None:
    """Measure what runs here."""


bench_command.add_command(serve_command)
bench_command.add_command(latency_command)


def _counts(most: int) -> Any:
    def read(_: click.Context, param: click.Parameter, raw: str | None) -> tuple[int, ...] | None:
        return None if raw is None else read_counts(param.opts[0], raw, most)

    return read


def _count_option(name: str, most: int, text: str) -> Callable[[_Command], _Command]:
    return click.option(name, metavar="N,...", callback=_counts(most), help=text)


@bench_command.command("native")
@click.argument("model")
@_count_option("--batch", _MAX_BATCH, "Sequences that decode together [default: 1,2,4,8,16,32].")
@_count_option("--context", _MAX_TOKENS, "Tokens in the cache [default: 128,1024,4096].")
@_count_option("--prefill", _MAX_TOKENS, "Tokens of a prompt [default: 128,512,2048].")
@click.option("--quick", is_flag=True, help="Batch 1 and 16, prefill 512, context 128; seconds.")
@click.option("--warm", is_flag=True, help="Leave the processor's caches warm between steps.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw a roofline: .png, .svg or .pdf (extra `bench`).",
)
@settings_flags((*STORE_FIELDS, "threads", "kv_cache_dtype", "max_model_len"))
def native_command(settings: Settings, model: str, **options: Any) -> None:
    """Time MODEL against this machine's limits.

    The limits (memory, arithmetic) are measured in the same run.
    """
    from insitu.bench.plot import check_plot, draw
    from insitu.cli.opening import locate

    if options["plot"] is not None:
        check_plot(options["plot"])
    located = locate(model, settings)
    report = _measured(located.path, settings, options)
    if options["is_json"]:
        click.echo(json.dumps(report.as_json(), indent=1))
        for one in report.skipped:
            click.echo(f"insitu: not measured: {one.case}: {one.reason}", err=True)
    else:
        from insitu.bench.table import tables

        print_tables(tables(report))
    if options["plot"] is not None:
        draw(report, located.name, options["plot"])


def _measured(path: Path, settings: Settings, options: dict[str, Any]) -> Report:
    from dataclasses import replace

    from insitu.bench.cases import Wish
    from insitu.bench.native import QUICK, Effort, measure
    from insitu.engine.loop import tune_process
    from insitu.engine.plan import Wanted
    from insitu.models.load import load_model
    from insitu.weights.source import open_source

    tune_process()
    wish, effort = Wish(), Effort()
    if options["quick"]:
        wish, effort = Wish(batches=(1, 16), contexts=(128,), prefills=(512,)), QUICK
    asked = {"batches": options["batch"], "contexts": options["context"]}
    asked["prefills"] = options["prefill"]
    wish = replace(wish, **{name: value for name, value in asked.items() if value is not None})
    wanted = Wanted(
        threads=settings.threads,
        kv_cache_dtype=settings.kv_cache_dtype,
        max_model_len=settings.max_model_len,
    )
    source = open_source(path)
    try:
        with Counting() as watch:
            loaded = load_model(source, settings.max_model_len)
            return measure(
                loaded, wanted, wish, replace(effort, is_cold=not options["warm"]), watch
            )
    finally:
        source.close()
