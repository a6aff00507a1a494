"""The verbs that keep models: pull, list, rm.

Not here: how a pull works (``catalog``). Results go to standard output, progress to standard error.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from insitu.cli.flags import settings_flags
from insitu.settings.fields import STORE_FIELDS

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.settings.fields import Settings


def models_dir_of(settings: Settings) -> Path:
    """Where models live: the setting, else the user's cache folder."""
    from insitu.weights.locate import default_models_dir

    return settings.models_dir if settings.models_dir is not None else default_models_dir()


@click.command("pull")
@click.argument("source", required=False, metavar="[NAME | PATH | https://... | hf:...]")
@click.option("--name", metavar="NAME", help="Keep the model under this name.")
@click.option("--sha256", metavar="DIGEST", help="Refuse any other file (https:// and hf: only).")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@settings_flags(STORE_FIELDS)
def pull_command(
    settings: Settings, source: str | None, name: str | None, sha256: str | None, quiet: bool
) -> None:
    """Bring a model onto this machine and print its path.

    \b
    NAME                                a catalogue's name [default: smollm2-135m]
    PATH                                a model file or folder, copied
    https://host/file.gguf#sha256=...   an address; the digest is optional
    hf:owner/repository/file.gguf       a hub's file (pip install 'insitu[hub]')
    """
    from insitu.catalog.pull import pull
    from insitu.catalog.shipped import DEFAULT_MODEL
    from insitu.cli.bar import Bar

    with Bar(is_quiet=quiet) as bar:
        pulled = pull(
            DEFAULT_MODEL if source is None else source,
            models_dir_of(settings),
            catalog=settings.catalog,
            name=name,
            sha256=sha256,
            progress=bar,
        )
        if not pulled.is_new:
            bar.note(f"{pulled.record.name} is already here")
    click.echo(pulled.path)


@click.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_flags(STORE_FIELDS)
def list_command(settings: Settings, is_json: bool) -> None:
    """Show which models are here, and which a catalogue could bring."""
    from insitu.catalog.pull import read_catalogues
    from insitu.catalog.store import Store

    store = Store(models_dir_of(settings))
    records = list(store.records())
    here = {record.name for record in records}
    rest = [e for n, e in sorted(read_catalogues(settings.catalog).items()) if n not in here]
    if is_json:
        rows = [asdict(r) | {"path": str(store.model_path(r)), "pulled": True} for r in records]
        rows += [
            {"name": e.name, "size_bytes": e.size_bytes, "sha256": e.sha256, "pulled": False}
            for e in rest
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    lines = [(r.name, r.size_bytes, f"sha256:{r.sha256[:12]}", r.source) for r in records]
    lines += [(e.name, e.size_bytes, "not pulled", f"insitu pull {e.name}") for e in rest]
    width = max((len(line[0]) for line in lines), default=0)
    for name, size_bytes, state, source in lines:
        click.echo(f"{name:<{width}}  {size_bytes / 1e6:>9.1f} MB  {state:<19}  {source}")


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@settings_flags(STORE_FIELDS)
def rm_command(settings: Settings, names: tuple[str, ...]) -> None:
    """Delete pulled models, and what unfinished downloads of theirs left."""
    from insitu.catalog.store import Store
    from insitu.cli.bar import Bar

    store = Store(models_dir_of(settings))
    with Bar() as bar:
        for name in names:
            store.remove(name, bar)
            click.echo(f"removed {name}")
