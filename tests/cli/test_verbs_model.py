"""The verbs that run a model, with the real default one."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.model
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "INSITU_CONFIG"}
COMMAND = [sys.executable, "-m", "insitu"]


def insitu(*arguments: str | Path, stdin: str = "") -> str:
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generate_is_the_same_each_time_and_reads_stdin(smollm2_path: Path) -> None:
    flags = ("--max-tokens", "8", "--seed", "5", "--json")
    text = "The capital of France is"
    first = json.loads(insitu("generate", smollm2_path, text, *flags))
    again = json.loads(
        insitu(
            "generate",
            smollm2_path,
            "-",
            *flags,
            "--threads",
            "1",
            stdin="The capital of France is",
        )
    )
    assert first == again
    assert first["seed"] == 5
    assert first["usage"]["completion_tokens"] == len(first["token_ids"]) == 8


def test_generate_without_a_text_reads_it_from_a_pipe(smollm2_path: Path) -> None:
    flags = ("--temperature", "0", "--max-tokens", "4")
    piped = insitu("generate", smollm2_path, *flags, stdin="The capital of France is")
    assert piped == insitu("generate", smollm2_path, "The capital of France is", *flags)


def test_generate_chat_prints_the_answer_alone(smollm2_path: Path) -> None:
    text = insitu(
        "generate", smollm2_path, "Say hello.", "--chat", "--temperature", "0", "--max-tokens", "12"
    )
    assert text.strip()
    assert "<|im_" not in text


def test_chat_takes_lines_where_there_is_no_terminal(smollm2_path: Path) -> None:
    lines = "My name is Ada.\nWhat is my name?\n/reset\nWhat is my name?\n/exit\nnever read\n"
    out = insitu(
        "chat", smollm2_path, "--temperature", "0", "--max-tokens", "24", "--max-model-len", "512",
        stdin=lines,
    )  # fmt: skip
    answers = [line for line in out.splitlines() if line]
    assert len(answers) >= 3
    assert any("Ada" in line for line in answers)


def test_chat_in_a_terminal_is_stopped_by_ctrl_c_and_goes_on(smollm2_path: Path) -> None:
    ours, theirs = pty.openpty()
    # No answer may end before 3,000 tokens: seconds to stop it in.
    command = [*COMMAND, "chat", str(smollm2_path), "--temperature", "0", "--min-tokens", "3000"]
    process = subprocess.Popen(
        command, env=ENVIRONMENT, stdin=theirs, stdout=theirs, stderr=theirs, process_group=0
    )
    os.close(theirs)
    said = ""

    def read_until(text: str) -> None:
        nonlocal said
        end_s = time.monotonic() + 90
        while text not in said:
            is_ready, _, _ = select.select([ours], [], [], end_s - time.monotonic())
            assert is_ready, f"{text!r} never came: {said!r}"
            said += os.read(ours, 65536).decode("utf-8", "replace")
        said = said[said.index(text) + len(text) :]

    def interrupt_at_prompt() -> None:
        # readline sleeps through a signal that comes between its prompt and its first wait.
        process.send_signal(signal.SIGINT)
        while not select.select([ours], [], [], 2)[0]:
            process.send_signal(signal.SIGINT)

    try:
        read_until("> ")
        os.write(ours, b"What is the capital of France?\r")
        read_until("Paris")
        process.send_signal(signal.SIGINT)
        read_until("stopped")
        read_until("> ")
        interrupt_at_prompt()
        read_until("/exit ends")
        os.write(ours, b"/exit\r")
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_plan_shows_bytes_and_numeric_settings(smollm2_path: Path) -> None:
    plan = json.loads(insitu("plan", smollm2_path, "--json", "--max-model-len", "1024"))
    assert 0 < plan["at_start_bytes"] <= plan["at_most_bytes"]
    assert plan["max_model_len"] == 1024
    text = insitu("plan", smollm2_path)
    for word in ("at start", "at most", "weights", "numeric"):
        assert word in text


@contextlib.contextmanager
def served(*arguments: str | Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server of its own process; its address."""
    process = subprocess.Popen(
        [*COMMAND, "serve", *map(str, arguments), "--port", "0"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        match = re.search(r"(http://\S+)/v1", said)
        if match is None:
            process.kill()
            pytest.fail(f"no address: {said!r} {process.communicate()[1]}")
        yield match[1], process
    finally:
        process.kill()
        process.communicate()


def ask(address: str, body: dict[str, object], **headers: str) -> httpx.Response:
    return httpx.post(f"{address}/v1/completions", json=body, headers=headers, timeout=60)


def test_serve_answers_and_ends_on_sigterm(smollm2_path: Path) -> None:
    body: dict[str, object] = {"model": "default", "prompt": "One two", "max_tokens": 4, "seed": 1}
    with served(smollm2_path, "--max-model-len", "512") as (address, process):
        assert address.startswith("http://127.0.0.1:")
        assert ask(address, body).json()["usage"]["completion_tokens"] == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0


def test_serve_with_keys_asks_for_one(smollm2_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ada:a-long-enough-key\n")
    body: dict[str, object] = {"model": "default", "prompt": "One two", "max_tokens": 1}
    with served(smollm2_path, "--max-model-len", "512", "--api-key-file", keys) as (address, _):
        assert ask(address, body).status_code == 401
        assert ask(address, body, Authorization="Bearer a-long-enough-key").status_code == 200


@pytest.mark.slow
def test_first_token_comes_within_seconds_of_starting(smollm2_path: Path) -> None:
    body: dict[str, object] = {"model": "default", "prompt": "One two", "max_tokens": 1}
    took_s = []
    for _ in range(4):
        start_s = time.perf_counter()
        with served(smollm2_path) as (address, _):
            assert ask(address, body).status_code == 200
            took_s.append(time.perf_counter() - start_s)
    assert min(took_s) < 1.5, took_s
