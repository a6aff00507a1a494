"""Listen, say where, and go away gracefully.

First SIGTERM or SIGINT: readiness fails at once, new work gets 503, running and queued requests
finish; when they have, or when the grace time is over, connections close. Second signal: out within
a second. Not here: what is answered (``app``). Always true: an idle connection holds nothing up,
and the exit code is 0 only where every request finished by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

import uvicorn

from insitu.server.address import cannot_listen
from insitu.server.protocol import BoundedHttpProtocol

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.applications import Starlette

    from insitu.server.options import ServerOptions
    from insitu.server.service import Service


_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# After a second signal: what the event loop gets before the process is ended under it.
_FORCE_S = 0.6
_CLOSE_S = 2


def serve(app: Starlette, options: ServerOptions) -> int:
    """Serve until a signal ends it; return the exit code: 0 after a clean drain."""
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        http=BoundedHttpProtocol,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(options.keep_alive_timeout_s),
        timeout_graceful_shutdown=_CLOSE_S,
    )
    server = DrainingServer(config, app.state.service)
    # Its one line about a port in use does not say what to do; ours does.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    try:
        server.run()
    except SystemExit as ended:
        if not isinstance(ended.__context__, OSError):
            raise
        cause = ended.__context__
        raise cannot_listen(options.host, options.port, cause) from cause
    return server.exit_code


class DrainingServer(uvicorn.Server):
    """A uvicorn server whose first signal starts a drain."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain: asyncio.Task[None] | None = None
        self.exit_code = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say where."""
        await super().startup(sockets)
        if not self.started:
            return
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        port = self.servers[0].sockets[0].getsockname()[1]
        host = self.config.host
        name = f"[{host}]" if ":" in host else host
        self._service.options.on_ready(f"http://{name}:{port}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the process' signals while serving, where this thread may."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.on_signal)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def on_signal(self) -> None:
        """Drain; when already draining, leave."""
        if self._drain is None:
            if self._service.lifecycle.num_active:
                self._service.options.on_drain(self._service.lifecycle.num_active)
            self._drain = asyncio.get_running_loop().create_task(self._drain_then_exit())
            return
        # It would show a traceback for each task that is cut off, as was asked for.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.exit_code = 1
        self.should_exit = self.force_exit = True
        threading.Thread(target=_force_exit, daemon=True).start()

    async def _drain_then_exit(self) -> None:
        is_clean = await self._service.lifecycle.drain(self._service.options.drain_grace_s)
        if not is_clean:
            self.exit_code = 1
        self.should_exit = True


def _force_exit() -> None:
    threading.Event().wait(_FORCE_S)
    os._exit(1)
