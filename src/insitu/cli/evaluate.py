"""The verb ``evaluate``: how well a model foretells a text, and how far it strays from another.

Not here: evaluating (``evaluate``). Standard output carries the table or the JSON and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from insitu.cli.bar import Counting
from insitu.cli.flags import settings_flags
from insitu.settings.fields import STORE_FIELDS

if TYPE_CHECKING:
    from insitu.settings.fields import Settings

_REFERENCE = "reference"
_MOST_TOKENS = 2**20
_FILE = click.Path(path_type=Path)


@click.command("evaluate")
@click.argument("model")
@click.option("--text", type=_FILE, metavar="FILE", help="UTF-8 text [default: a story's opening].")
@click.option(
    "--against",
    metavar="MODEL|reference",
    help="Compare with another model, or with this one's own definition in float32 (slow).",
)
@click.option(
    "--tokens", type=click.IntRange(2, _MOST_TOKENS), metavar="N", help="Only the first N."
)
@click.option(
    "--window",
    type=click.IntRange(2, _MOST_TOKENS),
    metavar="N",
    default=512,
    show_default=True,
    help="Tokens that see each other.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot", type=_FILE, metavar="FILE", help="Draw it: .png, .svg or .pdf (extra `bench`)."
)
@settings_flags((*STORE_FIELDS, "threads", "kv_cache_dtype"))
def evaluate_command(settings: Settings, model: str, **options: Any) -> None:
    """Judge MODEL by a text: perplexity, calibration, and its distance from another model.

    KL divergence is from the other model's distributions to MODEL's, in nats a token.
    """
    from insitu.cli.opening import locate
    from insitu.evaluate.models import How
    from insitu.evaluate.plot import check_plot, draw
    from insitu.evaluate.run import Wish, evaluate
    from insitu.evaluate.table import lines
    from insitu.evaluate.text import SAMPLE

    if options["plot"] is not None:
        check_plot(options["plot"])
    located, against = locate(model, settings), options["against"]
    other = None if against in (None, _REFERENCE) else locate(against, settings)
    wish = Wish(
        path=located.path,
        how=How(options["window"], settings.kv_cache_dtype, settings.threads),
        against=None if other is None else other.path,
        against_definition=against == _REFERENCE,
        text=options["text"] or SAMPLE,
        max_num_tokens=options["tokens"],
    )
    with Counting() as watch:
        evaluation = evaluate(wish, watch)
    if options["is_json"]:
        named = {"model": located.name, "against": against, "text": str(wish.text)}
        settled = {"window": wish.how.window, "kv_cache_dtype": wish.how.kv_dtype}
        click.echo(json.dumps(named | settled | evaluation.report.as_json(), indent=1))
    else:
        click.echo("\n".join(lines(evaluation.report, against)))
    if options["plot"] is not None:
        draw(evaluation, located.name, options["plot"])
