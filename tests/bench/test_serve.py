"""``bench serve`` and ``bench latency`` against a real server over a tiny model, and bad ones."""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from live_server import live_server
from tiny_model import write_gguf

from insitu.bench.client import Answer
from insitu.bench.errors import BenchError
from insitu.bench.figures import Bounds, gaps_s, tpot_s
from insitu.bench.load import Load, asks_of
from insitu.cli.bench import bench_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def url(model: Path) -> Iterator[str]:
    with live_server(model, "--threads", "1") as server:
        yield server.url


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(bench_command, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


SMALL = ("--num-requests", "12", "--input-tokens", "9", "--output-tokens", "6")


@pytest.mark.parametrize("pace", [("--concurrency", "4"), ("--rate", "50")])
def test_every_request_is_timed_and_its_tokens_counted(url: str, pace: tuple[str, str]) -> None:
    code, output = run("serve", url, *SMALL, *pace, "--json", "--max-ttft-ms", "60000")
    got = json.loads(output)
    assert code == 0
    assert got["requests"] == got["finished"] == 12
    assert got["errors"] == {}
    assert got["output_tokens"] == 12 * 6
    assert got["prompt_tokens"] >= 12 * 9
    assert got["goodput_per_s"] == pytest.approx(got["requests_per_s"])
    for name in ("ttft_s", "itl_s", "tpot_s", "e2e_s"):
        assert 0 <= got[name]["p50"] <= got[name]["p99"] <= got[name]["max"] <= got["wall_s"]
    assert got["e2e_s"]["max"] >= got["ttft_s"]["max"]
    assert 0 < got["client_cpu_share"] < 2


def test_a_person_gets_a_table(url: str) -> None:
    code, output = run("serve", url, *SMALL)
    assert code == 0
    assert re.search(r"12 of 12 requests in .* s, 16 at once", output)
    assert re.search(r"TTFT .*\n.*ITL ", output)


def test_a_refused_request_is_an_error_and_nothing_else(url: str) -> None:
    code, output = run("serve", url, *SMALL, "--input-tokens", "90000", "--json")
    got = json.loads(output)
    assert code == 1
    assert (got["finished"], got["output_tokens"]) == (0, 0)
    assert sum(got["errors"].values()) == 12
    assert "ttft_s" not in got


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """A server that says one thing to everybody and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(65536)
                    client.sendall(reply)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "named"),
    [
        (b"", "the connection was lost"),
        (b"SSH-2.0\r\n", "not HTTP"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", "HTTP 503"),
        (STREAM + b"data: [1]\n\n", "a chunk that is no completion"),
        (STREAM + b'data: {"error": {"code": "x"}}\n\n', "error in the stream: x"),
        (STREAM + b'data: {"choices": []}\n\n', "the connection was lost"),
    ],
)
def test_a_server_that_fails_is_named(reply: bytes, named: str) -> None:
    with answering(reply) as url, pytest.raises(BenchError, match=named):
        run("serve", url, "--model", "m")


def test_nobody_there_and_no_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BenchError, match="Is the server running"):
        run("serve", f"http://127.0.0.1:{port}")
    with pytest.raises(BenchError, match="not the address"):
        run("serve", "ftp://x", "--model", "m")


def test_rate_and_concurrency_exclude_each_other() -> None:
    code, output = run("serve", "--rate", "1", "--concurrency", "2")
    assert code == 2
    assert "--rate and --concurrency" in output


def test_a_load_follows_from_its_seed() -> None:
    load = Load(num_requests=2000, lengths="sharegpt", rate_per_s=10.0, seed=3)
    asks = asks_of(load)
    assert asks == asks_of(load)
    assert asks_of(Load(seed=1)) != asks_of(Load(seed=2))
    assert asks[-1].at_s == pytest.approx(200, rel=0.1)
    words = [len(ask.prompt.split()) for ask in asks]
    assert sum(words) / 2000 == pytest.approx(161, rel=0.15)
    assert 4 <= min(words) < max(words) <= 2048


def test_times_of_an_answer() -> None:
    answer = Answer([0.5, 0.6, 0.8], end_s=0.9, output_tokens=7)
    assert gaps_s(answer) == pytest.approx([0.1, 0.2])
    assert tpot_s(answer) == pytest.approx(0.05)
    assert tpot_s(Answer([0.5], end_s=0.6, output_tokens=1)) is None
    assert Bounds(ttft_s=0.5, tpot_s=0.06).hold(answer)
    assert not Bounds(e2e_s=0.8).hold(answer)


def test_batches_in_this_process(model: Path) -> None:
    arguments = ("--batch", "1,3", "--input-tokens", "5", "--output-tokens", "4", "--repeats", "2")
    code, output = run("latency", str(model), *arguments, "--threads", "1", "--json")
    rows: list[dict[str, Any]] = json.loads(output)
    assert code == 0
    assert [row["batch"] for row in rows] == [1, 3]
    for row in rows:
        assert 0 < row["fastest_s"] <= row["seconds"] <= row["slowest_s"]
        assert row["output_tokens_per_s"] == pytest.approx(row["batch"] * 4 / row["seconds"])
    code, output = run("latency", str(model), "--batch", "0")
    assert code == 2
