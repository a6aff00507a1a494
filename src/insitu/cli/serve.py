"""The verb ``serve``: a model over HTTP until a signal ends it.

Not here: HTTP (``server``) and the engine. Always true: beyond this machine only with keys, unless
``--insecure`` says otherwise; what was planned and what was reduced is said before the first
request.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import click

from insitu.cli.flags import settings_flags
from insitu.settings.fields import FIELDS

if TYPE_CHECKING:
    from insitu.llm.text_generator import TextGenerator
    from insitu.policy.gate import LimitGate
    from insitu.policy.key_file import KeyFile
    from insitu.server.options import ServerOptions
    from insitu.settings.fields import Settings

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 (compared with, never bound to)


@click.command("serve")
@click.argument("model", required=False)
@settings_flags(FIELDS)
def serve_command(settings: Settings, model: str | None) -> int:
    """Serve MODEL with OpenAI's API; without one, the default model (`insitu pull` brings it)."""
    from insitu.cli.opening import locate, open_generator
    from insitu.server.address import require_free

    options = server_options(settings)
    require_free(options.host, options.port)
    located = locate(model, settings)
    # Packing weights leaves Python idle; importing the server meanwhile hides most of its cost.
    importing = threading.Thread(target=_import_server, daemon=True)
    importing.start()
    generator = open_generator(located, settings, is_served=True)
    importing.join()
    try:
        _say_plan(generator)
        return _serve(generator, options)
    finally:
        generator.close()


def _import_server() -> None:
    from insitu.server import app, run

    app.preload()
    assert run.serve is not None


def _serve(generator: TextGenerator, options: ServerOptions) -> int:
    from insitu.server.app import create_app
    from insitu.server.batches.store import BatchFolderUnusable
    from insitu.server.run import serve

    try:
        app = create_app(generator, options)
    except BatchFolderUnusable as error:
        raise click.ClickException(f"--batch-dir: {error}") from None
    return serve(app, options)


def server_options(settings: Settings) -> ServerOptions:
    """Values for the server, refused where they would open an unprotected door."""
    from insitu.server.options import ServerOptions, is_loopback

    keys = None
    if settings.api_key_file is not None:
        from insitu.policy.key_file import KeyFile

        keys = KeyFile(settings.api_key_file)
    elif not is_loopback(settings.host) and not settings.insecure:
        place = "every address" if settings.host in ANYWHERE else settings.host
        raise click.ClickException(
            f"--host {settings.host} lets {place} of this machine be reached from others, and "
            "there is no key: give --api-key-file FILE, or --insecure if that is meant."
        )
    return ServerOptions(
        host=settings.host,
        port=settings.port,
        allowed_hosts=settings.allowed_host,
        cors_origins=settings.cors_origin,
        authenticate=None if keys is None else keys.authenticate,
        gate=_gate(settings, keys),
        batch_dir=settings.batch_dir,
        max_body_bytes=settings.max_body_bytes,
        request_timeout_s=settings.request_timeout_s or None,
        drain_grace_s=settings.drain_grace_s,
        on_ready=_say_ready,
        on_drain=partial(_say_drain, settings.drain_grace_s),
    )


def _gate(settings: Settings, keys: KeyFile | None) -> LimitGate:
    """The gate of all callers: a name's own limits, else those of the settings."""
    from insitu.policy.gate import LimitGate
    from insitu.policy.limits import Limits

    defaults = Limits(
        requests_per_minute=settings.requests_per_minute,
        tokens_per_minute=settings.tokens_per_minute,
        tokens_per_day=settings.tokens_per_day,
        concurrent_requests=settings.concurrent_requests,
    )
    if keys is None:
        return LimitGate(lambda _: defaults)
    return LimitGate(lambda caller: keys.limits_of(caller).over(defaults))


def _say_plan(generator: TextGenerator) -> None:
    card = generator.describe()
    click.echo(f"insitu: {card.name} ({card.architecture}), {card.digest}", err=True)
    click.echo(f"insitu: {generator.plan.summary()}", err=True)
    if card.sampling_defaults:
        told = ", ".join(f"{name} {value:g}" for name, value in card.sampling_defaults.items())
        click.echo(
            f"insitu: unless a request says otherwise (--sampling-defaults): {told}", err=True
        )
    for note in generator.plan.notes:
        click.echo(f"insitu: {note}", err=True)


def _say_drain(grace_s: float, num_active: int) -> None:
    open_ones = "1 request" if num_active == 1 else f"{num_active} requests"
    click.echo(
        f"insitu: stopping when {open_ones} finished, in {grace_s:g} s at most; Ctrl-C stops now",
        err=True,
    )


def _say_ready(address: str) -> None:
    sys.stdout.write(f"insitu: serving at {address}/v1\n")
    sys.stdout.flush()
