"""The table of routes, and the one function that makes an app of a Generator.

Not here: sockets and signals (``run``). Always true: pydantic and prometheus-client are loaded when
an app is made, not when this module is imported, so that a command starts quickly.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from insitu.server.body import BodyBudget
from insitu.server.lifecycle import Lifecycle
from insitu.server.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from insitu.server.options import ServerOptions
    from insitu.types import Generator


def create_app(generator: Generator, options: ServerOptions) -> Starlette:
    """Make the app that answers for a generator."""
    from insitu.server.door import Door, http_error  # noqa: PLC0415 - see above
    from insitu.server.metrics import Metrics  # noqa: PLC0415

    lifecycle = Lifecycle()
    metrics = Metrics(generator, lifecycle)
    bodies = BodyBudget(options.max_body_bytes)
    service = Service(generator, options, metrics, lifecycle, bodies)
    app = Starlette(
        routes=routes(),
        middleware=[Middleware(Door, service=service)],
        exception_handlers={HTTPException: http_error},
        lifespan=_lifespan,
    )
    # A path has one spelling: no redirect, whose target would repeat the Host header.
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.batches = None
    if options.batch_dir is not None:
        from insitu.server.batches.runner import Batches  # noqa: PLC0415
        from insitu.server.batches.store import Store  # noqa: PLC0415

        app.state.batches = Batches(Store(options.batch_dir), app, options.max_body_bytes)
    preload()
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    """From before the first request to after the last: batches run."""
    if app.state.batches is None:
        yield
        return
    async with app.state.batches.running():
        yield


def routes() -> list[Route]:
    """Every path there is; ``/`` is left free."""
    from insitu.server import chat, completions, embeddings, models, status, tokenize  # noqa: PLC0415  # noqa: PLC0415
    from insitu.server.anthropic import route as anthropic  # noqa: PLC0415
    from insitu.server.batches import route as batches  # noqa: PLC0415
    from insitu.server.ollama import embed as ollama_embed  # noqa: PLC0415
    from insitu.server.ollama import route as ollama  # noqa: PLC0415
    from insitu.server.responses.route import create_response  # noqa: PLC0415

    return [
        Route("/v1/models", models.list_models),
        Route("/v1/models/{model_id:path}", models.retrieve_model),
        Route("/v1/chat/completions", chat.create_chat_completion, methods=["POST"]),
        Route("/v1/completions", completions.create_completion, methods=["POST"]),
        Route("/v1/embeddings", embeddings.create_embeddings, methods=["POST"]),
        Route("/v1/responses", create_response, methods=["POST"]),
        Route("/v1/messages", anthropic.create_message, methods=["POST"]),
        Route("/v1/messages/count_tokens", anthropic.count_tokens, methods=["POST"]),
        Route("/api/chat", ollama.chat, methods=["POST"]),
        Route("/api/generate", ollama.generate, methods=["POST"]),
        Route("/api/embed", ollama_embed.embed, methods=["POST"]),
        Route("/api/embeddings", ollama_embed.embed_one, methods=["POST"]),
        Route("/api/show", ollama.show, methods=["POST"]),
        Route("/api/tags", ollama.tags),
        Route("/api/ps", ollama.running),
        Route("/api/version", ollama.tell_version),
        Route("/v1/files", batches.Files),
        Route("/v1/files/{file_id}/content", batches.Content),
        Route("/v1/files/{file_id:path}", batches.File),
        Route("/v1/batches", batches.Batches),
        Route("/v1/batches/{batch_id}/cancel", batches.Cancel),
        Route("/v1/batches/{batch_id:path}", batches.OneBatch),
        Route("/v1/tokenize", tokenize.tokenize, methods=["POST"]),
        Route("/v1/detokenize", tokenize.detokenize, methods=["POST"]),
        Route("/health", status.ready),
        Route("/health/ready", status.ready),
        Route("/health/live", status.live),
        Route("/metrics", status.metrics),
        Route("/openapi.json", status.openapi),
    ]


def preload() -> None:
    """Load the wire schema; may be called from a thread while a model is being packed."""
    from insitu.server import (  # noqa: F401, PLC0415 - imported for its effect
        schema_chat,
        schema_completions,
        schema_embeddings,
        schema_tokens,
    )
    from insitu.server.anthropic import to_chat as messages  # noqa: F401, PLC0415
    from insitu.server.ollama import to_chat as lines  # noqa: F401, PLC0415
    from insitu.server.responses import to_chat  # noqa: F401, PLC0415
