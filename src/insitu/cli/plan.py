"""The verb ``plan``: what a model will take, before it is loaded.

Not here: the arithmetic (``engine.plan``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from insitu.cli.flags import settings_flags
from insitu.settings.fields import FIELDS

if TYPE_CHECKING:
    from insitu.settings.fields import Settings


@click.command("plan")
@click.argument("model")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_flags(FIELDS)
def plan_command(settings: Settings, model: str, is_json: bool) -> None:
    """Show the bytes that MODEL needs at start and at most, with these flags of `serve`."""
    from insitu.cli.opening import locate, served_values
    from insitu.llm.build import plan

    located = locate(model, settings)
    made = plan(located.path, **served_values(settings))
    if is_json:
        file = {"digest": made.digest, "size_bytes": made.size_bytes}
        click.echo(json.dumps(file | made.plan.as_dict(), indent=1))
    else:
        size_mb = made.size_bytes / 1e6
        click.echo(f"{located.name} ({made.plan.architecture}, {size_mb:,.1f} MB)\n{made.digest}\n")
        click.echo(made.plan.describe())
