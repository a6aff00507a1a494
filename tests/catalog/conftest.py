"""A wheelhouse that pip uses, and a file server with every way of failing."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from catalog.wheelhouse import Wheelhouse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def wheelhouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheelhouse:
    """An empty wheelhouse, the only index that pip sees."""
    house = Wheelhouse(tmp_path / "wheels")
    house.folder.mkdir()
    for name, value in house.environment.items():
        monkeypatch.setenv(name, value)
    return house


class FileServer:
    """Serves one file; each number of ``cut_at`` ends one answer after so many bytes."""

    def __init__(self) -> None:
        self.data = b""
        self.etag = '"one"'
        self.has_ranges = True
        self.cut_at: list[int] = []
        self.status = 200
        self.redirect: str | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """One request."""
        sent = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append((handler.command, handler.path, sent))
        if self.redirect is not None or self.status != 200:
            handler.send_response(302 if self.redirect else self.status)
            handler.send_header("Location", self.redirect or "")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        start = self._start(sent)
        body = self.data[start:]
        handler.send_response(206 if start else 200)
        if start:
            total = len(self.data)
            handler.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("X-Repo-Commit", "a" * 40)
        if self.etag:
            handler.send_header("ETag", self.etag)
        handler.end_headers()
        if handler.command == "GET":
            cut = self.cut_at.pop(0) if self.cut_at else len(body)
            handler.wfile.write(body[:cut])
            handler.close_connection = True

    def _start(self, sent: dict[str, str]) -> int:
        is_same = sent.get("if-range") == self.etag
        if self.has_ranges and is_same and "range" in sent:
            return int(sent["range"].removeprefix("bytes=").removesuffix("-"))
        return 0


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    """A server on this machine, ended with the test."""
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            state.answer(self)

        def do_HEAD(self) -> None:
            state.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            """Be quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
