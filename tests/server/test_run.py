"""A real server on a real socket: other people's clients, raw HTTP, signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from server.asking import CHAT, TEXT, chat_body, text_body

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


@dataclass
class Running:
    """A server in a process of its own."""

    process: subprocess.Popen[str]
    url: str
    stderr: TextIO

    def connect(self) -> socket.socket:
        parts = urlsplit(self.url)
        assert parts.hostname
        return socket.create_connection((parts.hostname, parts.port or 0), timeout=5)

    def end(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)

    def said(self) -> str:
        """Its standard error, once it has ended."""
        self.stderr.seek(0)
        return self.stderr.read()


@contextlib.contextmanager
def running(script: dict[str, Any] | None = None, **options: Any) -> Iterator[Running]:
    command = [sys.executable, "-m", "server.scripted_server"]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            [*command, json.dumps(script or {}), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            yield Running(process, url, stderr)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(max_body_bytes=100_000) as one:
        yield one


def test_the_openai_client(server: Running) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("default").id == "default"
        user: Any = {"role": "user", "content": "hi"}
        chat = client.chat.completions.create(
            model="tiny", messages=[user], logprobs=True, top_logprobs=2
        )
        assert chat.choices[0].message.content == "alpha beta"
        assert chat.choices[0].logprobs is not None
        assert chat.usage is not None
        history: Any = [user, chat.choices[0].message.model_dump(), user]
        assert client.chat.completions.create(model="tiny", messages=history).choices
        stream = client.chat.completions.create(
            model="tiny", messages=[user], stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert said == "alpha beta"
        assert chunks[-1].usage is not None
        text = client.completions.create(model="tiny", prompt="x", max_tokens=3, logprobs=2)
        assert text.choices[0].text == "alp"
        assert text.choices[0].logprobs is not None
        streamed = client.completions.create(model="tiny", prompt="x", stream=True)
        assert "".join(one.choices[0].text for one in streamed) == "alpha beta"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=[user])
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model="tiny", messages=[user], n=129)
        assert refused.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("absent")


def test_openai_client_sees_a_failure_in_a_stream() -> None:
    with (
        running({"fail_after": 3}) as one,
        openai.OpenAI(base_url=one.url + "/v1", api_key="any", max_retries=0) as client,
    ):
        user: Any = {"role": "user", "content": "hi"}
        stream = client.chat.completions.create(model="tiny", messages=[user], stream=True)
        with pytest.raises(openai.APIError, match="the step failed"):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="tiny", messages=[user])


def raw_post(path: str, body: bytes, *more: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            data += part
    return data


def test_pipelined_requests_are_answered_in_order(server: Running) -> None:
    first = json.dumps(text_body(max_tokens=1)).encode()
    second = json.dumps(text_body(max_tokens=2)).encode()
    with server.connect() as connection:
        connection.sendall(
            raw_post(TEXT, first, f"Content-Length: {len(first)}")
            + raw_post(TEXT, second, f"Content-Length: {len(second)}", "Connection: close")
        )
        answer = read_all(connection)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.index(b'"text":"a"') < answer.index(b'"text":"al"')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (raw_post(TEXT, b"0\r\n\r\n", "Content-Length: 5", "Transfer-Encoding: chunked"), 400),
        (raw_post(TEXT, b"{}", "Content-Length: 2", "Content-Length: 3"), 400),
        (raw_post(TEXT, b"", "Content-Length: -1"), 400),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 200_000, 431),
        (b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
        (raw_post(TEXT, b"", "Content-Length: 99999999", "Expect: 100-continue"), 413),
        (raw_post(TEXT, b"x" * 100_001, "Content-Length: 100001"), 413),
        (raw_post(TEXT, b"186a1\r\n" + b"x" * 100_001, "Transfer-Encoding: chunked"), 413),
        (raw_post(TEXT, b"-1\r\nabc", "Transfer-Encoding: chunked"), 400),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        (raw_post(TEXT, b'{"model":"tiny"}', "Content-Length: 7"), 400),
        (raw_post(TEXT, b"{}", "Content-Length: 2", *(f"X{i}: y" for i in range(10_000))), 431),
        (
            raw_post(
                TEXT, b"x", "Content-Length: 1", "Content-Encoding: gzip", "Connection: close"
            ),
            415,
        ),
        (b"GET /v1/../v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /V1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /health%0a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET //v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /v1/models%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
    ],
)
def test_hostile_http_gets_a_json_answer(
    server: Running, request_bytes: bytes, status: int
) -> None:
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request_bytes)
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == str(status).encode(), answer[:200]
    # What lies behind a body is another request, with an answer of its own.
    value, _ = json.JSONDecoder().raw_decode(body.decode())
    assert status == 200 or set(value["error"]) == {"message", "type", "param", "code"}
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat", "/v1/responses", "/v1/unknown"])
@pytest.mark.parametrize("lines", [("Content-Length: -1",), ("X y",), ("X: " + "y" * 200_000,)])
def test_what_cannot_be_parsed_is_answered_in_the_words_of_its_path(
    server: Running, path: str, lines: tuple[str, ...]
) -> None:
    with server.connect() as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(raw_post(path, b"{}", "X-Request-Id: mine", "A: b", *lines))
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    status, value = int(head.split()[1]), json.loads(body)
    assert status == (431 if len(lines[0]) > 20 else 400)
    assert b"x-request-id: mine" in head.lower()
    error = value if path == "/api/chat" else value["error"]
    assert error["code"] == ("headers_too_large" if status == 431 else "invalid_http")
    assert ("request_id" in value) == (path == "/v1/messages")
    assert isinstance(value["error"], str) == (path == "/api/chat")


def test_a_trailer_is_not_a_header(server: Running) -> None:
    body = json.dumps(text_body()).encode()
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    for trailer in (b"Host: evil.example\r\n", b"X: y\r\n" * 1000):
        more = ("Transfer-Encoding: chunked", "Connection: close")
        with server.connect() as connection:
            connection.sendall(raw_post(TEXT, chunks + trailer + b"\r\n", *more))
            assert b"HTTP/1.1 200" in read_all(connection)


@pytest.mark.parametrize("cut", [0, 10, 60, 200, 240])
def test_an_offered_protocol_is_passed_over(server: Running, cut: int) -> None:
    body = json.dumps(text_body()).encode()
    offer = ("Connection: Upgrade, HTTP2-Settings, close", "Upgrade: h2c", "HTTP2-Settings: AAQA")
    sent = raw_post(TEXT, body, *offer, f"Content-Length: {len(body)}")
    with server.connect() as connection:
        connection.sendall(sent[:cut])
        time.sleep(0.02)
        connection.sendall(sent[cut:])
        assert b"alpha beta" in read_all(connection)


def test_a_port_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        script = "from insitu.server.app import create_app\nfrom insitu.server.options import *\n"
        script += "from insitu.server.run import serve\n"
        script += "from server.scripted_generator import Scripted\n"
        script += f"options = ServerOptions(port={taken.getsockname()[1]})\n"
        script += "serve(create_app(Scripted(), options), options)"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False
        )
    assert "ListenError: cannot listen on 127.0.0.1 port" in done.stderr
    assert "--port" in done.stderr


def test_a_body_that_never_ends_is_given_up_and_holds_nobody() -> None:
    body = json.dumps(text_body()).encode()
    with running(body_timeout_s=0.6) as one, one.connect() as short, one.connect() as slow:
        short.sendall(raw_post(TEXT, body, f"Content-Length: {len(body) + 5}"))
        slow.sendall(raw_post(TEXT, b"", f"Content-Length: {len(body)}"))
        with contextlib.suppress(ConnectionError):
            for byte in body[:10]:
                slow.sendall(bytes((byte,)))
                assert httpx.get(one.url + "/health").status_code == 200
                time.sleep(0.1)
        for connection in (short, slow):
            assert read_all(connection).startswith(b"HTTP/1.1 408 ")


def test_expect_continue_is_honoured(server: Running) -> None:
    body = json.dumps(text_body()).encode()
    with server.connect() as connection:
        more = (f"Content-Length: {len(body)}", "Expect: 100-continue", "Connection: close")
        connection.sendall(raw_post(TEXT, b"", *more))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert b"HTTP/1.1 200" in read_all(connection)


def open_stream(one: Running, into: list[str]) -> threading.Thread:
    """Read a stream elsewhere; it has begun."""
    has_begun = threading.Event()

    def read() -> None:
        with httpx.stream("POST", one.url + CHAT, json=chat_body(stream=True), timeout=20) as got:
            parts = got.iter_text()
            first = next(parts)
            has_begun.set()
            into.append(first + "".join(parts))

    thread = threading.Thread(target=read)
    thread.start()
    assert has_begun.wait(20)
    return thread


def test_sigterm_lets_streams_finish_and_idle_connections_go() -> None:
    with running({"gap_s": 0.3}, drain_grace_s=10) as one:
        texts: list[str] = []
        threads = [open_stream(one, texts) for _ in range(3)]
        idle = one.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(1000)
        slow = one.connect()
        body = json.dumps(chat_body(stream=True)).encode()
        slow.sendall(raw_post(CHAT, body, f"Content-Length: {len(body)}"))
        assert slow.recv(10)
        one.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert httpx.get(one.url + "/health").status_code == 503
        assert httpx.get(one.url + "/health/live").status_code == 200
        refused = httpx.post(one.url + CHAT, json=chat_body())
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        for thread in threads:
            thread.join()
        assert one.end(3) == 0
        assert all('"finish_reason":"stop"' in text for text in texts)
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        idle.close()
        slow.close()


def test_the_grace_time_ends_with_an_error_event() -> None:
    with running({"gap_s": 1.0}, drain_grace_s=0.3) as one:
        texts: list[str] = []
        thread = open_stream(one, texts)
        time.sleep(1.3)
        one.process.send_signal(signal.SIGTERM)
        assert one.end(4) == 1
        thread.join()
        assert '"code":"shutting_down"' in texts[0]
        assert '"finish_reason":"stop"' not in texts[0]


def test_a_second_signal_ends_it_within_a_second() -> None:
    with running({"gap_s": 60.0}, drain_grace_s=60) as one:
        connection = one.connect()
        body = json.dumps(chat_body(stream=True)).encode()
        connection.sendall(raw_post(CHAT, body, f"Content-Length: {len(body)}"))
        time.sleep(0.3)
        one.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        one.process.send_signal(signal.SIGTERM)
        assert one.end(20) != 0
        connection.close()
        assert "Traceback" not in one.said()


def test_an_idle_server_ends_at_once_with_code_zero() -> None:
    with running() as one:
        one.process.send_signal(signal.SIGINT)
        assert one.end(2) == 0


def test_the_app_is_imported_quickly() -> None:
    """It takes twice the processor time of what it needs of the standard library."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    def seconds(modules: str) -> float:
        code = f"import time; t = time.process_time(); import {modules}, sys; "
        code += "print(time.process_time() - t); assert 'pydantic' not in sys.modules"
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return float(done.stdout)

    needed = "asyncio, email, http.client, json, logging, ssl"
    pairs = [(seconds("insitu.server.app"), seconds(needed)) for _ in range(5)]
    assert min(app for app, _ in pairs) < 4 * min(standard for _, standard in pairs)
