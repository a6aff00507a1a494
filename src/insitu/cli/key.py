"""The verb ``key``: draw an API key, and the line of a key file that knows it by its hash.

Always true: the key is shown once and written nowhere.
"""

from __future__ import annotations

import hashlib
import secrets

import click


@click.command("key")
@click.argument("name")
@click.option("--admin", is_flag=True, help="A key that may also read /metrics.")
def key_command(name: str, admin: bool) -> int:
    """Draw a key for NAME; the first line is the key, the second belongs in the key file."""
    from insitu.policy.keys import TENANT

    if not TENANT.fullmatch(name):
        raise click.UsageError("NAME: up to 64 of A-Z a-z 0-9 . _ -, a letter or digit first.")
    key = f"insitu-{secrets.token_urlsafe(32)}"
    click.echo(key)
    digest = hashlib.sha256(key.encode()).hexdigest()
    click.echo(f"{name}:sha256:{digest}" + (" admin" if admin else ""))
    return 0
