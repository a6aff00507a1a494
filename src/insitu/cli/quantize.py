"""The verb ``quantize``: write a model's weights in fewer bits.

Not here: quantising (``quantize``). Standard output carries the report and nothing else.
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

_TYPES = ("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "q2_k")
_FILE = click.Path(path_type=Path)


@click.command("quantize")
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=_FILE)
@click.option(
    "--type", "kind", type=click.Choice(_TYPES), required=True, help="Block type of the layers."
)
@click.option(
    "--head-type", type=click.Choice(_TYPES), help="Of embedding and head [default: q8_0]."
)
@click.option(
    "--method",
    type=click.Choice(("nearest", "scale", "gptq")),
    default="gptq",
    show_default=True,
    help="Round to nearest; fit scales to inputs; or make up for errors as well.",
)
@click.option(
    "--calibration", type=_FILE, metavar="FILE", help="UTF-8 text [default: stories' openings]."
)
@click.option(
    "--tokens",
    type=click.IntRange(16, 2**20),
    default=4096,
    show_default=True,
    metavar="N",
    help="Most tokens of the calibration.",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_flags(STORE_FIELDS)
def quantize_command(settings: Settings, source: str, target: Path, **options: Any) -> None:
    """Write the GGUF model SRC to the file DST with fewer bits a weight.

    A run that is stopped goes on where it was when it is given again.
    """
    from insitu.cli.opening import locate
    from insitu.kernels.blocks import BlockType
    from insitu.quantize.run import CALIBRATION, Wish, quantize

    if not target.parent.is_dir():
        raise click.UsageError(f"there is no folder {target.parent}.")
    head = options["head_type"]
    wish = Wish(
        locate(source, settings).path,
        target,
        BlockType(options["kind"].upper()),
        None if head is None else BlockType(head.upper()),
        options["method"],
        options["calibration"] or CALIBRATION,
        max_num_tokens=options["tokens"],
    )
    with Counting() as watch:
        report = quantize(wish, watch)
    if options["is_json"]:
        click.echo(json.dumps(report.as_json(), indent=1))
        return
    click.echo(f"{'tensor':<32}{'type':<8}{'error':>9}{'in outputs':>12}")
    for one in report.tensors:
        outputs = "-" if one.output_error is None else f"{one.output_error:.4f}"
        click.echo(f"{one.name:<32}{one.block_type:<8}{one.error:>9.4f}{outputs:>12}")
    size_mb = report.size_bytes / 1e6
    click.echo(f"{target}: {size_mb:,.1f} MB, {report.bits_per_weight:.2f} bits a weight")
