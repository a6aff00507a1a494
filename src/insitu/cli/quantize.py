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

_TYPES = (
    "q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "q2_k", "f32", "f16", "bf16",
)  # fmt: skip
_FILE = click.Path(path_type=Path)


def _named(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """PATTERN=TYPE, the two apart."""
    pairs = []
    for value in values:
        pattern, kind = value.rpartition("=")[::2]
        if not pattern or kind not in _TYPES:
            wanted = f"PATTERN=TYPE, TYPE one of {', '.join(_TYPES)}"
            raise click.BadParameter(f"{value!r} is no {wanted}.")
        pairs.append((pattern, kind))
    return pairs


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
    "--tensor",
    "named",
    multiple=True,
    callback=_named,
    metavar="PATTERN=TYPE",
    help="Another type for tensors by name, as 'blk.*.ffn_down.weight=q6_k'.",
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
@click.option(
    "--format",
    "form",
    type=click.Choice(("gguf", "safetensors")),
    help="Of DST [default: gguf if its name ends so, or else SRC's].",
)
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_flags(STORE_FIELDS)
def quantize_command(settings: Settings, source: str, target: Path, **options: Any) -> None:
    """Write the model SRC to DST with fewer bits a weight, a GGUF file or a folder of safetensors.

    A run that is stopped goes on where it was when it is given again.
    """
    from insitu.cli.opening import locate
    from insitu.kernels.blocks import BlockType
    from insitu.quantize.layout import Types
    from insitu.quantize.run import CALIBRATION, Wish, quantize

    if not target.parent.is_dir():
        raise click.UsageError(f"there is no folder {target.parent}.")
    head = options["head_type"]
    types = Types(
        BlockType(options["kind"].upper()),
        None if head is None else BlockType(head.upper()),
        tuple((pattern, BlockType(kind.upper())) for pattern, kind in options["named"]),
    )
    wish = Wish(
        locate(source, settings).path,
        target,
        types,
        options["method"],
        options["calibration"] or CALIBRATION,
        max_num_tokens=options["tokens"],
        form=options["form"],
    )
    with Counting() as watch:
        report = quantize(wish, watch)
    if options["is_json"]:
        click.echo(json.dumps(report.as_json(), indent=1))
        return
    width = max(32, *(len(one.name) + 2 for one in report.tensors))
    click.echo(f"{'tensor':<{width}}{'type':<8}{'error':>9}{'in outputs':>12}")
    for one in report.tensors:
        outputs = "-" if one.output_error is None else f"{one.output_error:.4f}"
        click.echo(f"{one.name:<{width}}{one.block_type:<8}{one.error:>9.4f}{outputs:>12}")
    size_mb = report.size_bytes / 1e6
    click.echo(f"{target}: {size_mb:,.1f} MB, {report.bits_per_weight:.2f} bits a weight")
