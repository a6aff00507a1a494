"""The command line as a person meets it: help, errors in one line, models kept and removed."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tiny_model import TinyShape, random_weights, write_gguf

from insitu.kernels.blocks import BlockType

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "INSITU_CONFIG"}


def insitu(*arguments: str | Path, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "insitu", *map(str, arguments)],
        input=stdin,
        env=ENVIRONMENT | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_lists_the_verbs_and_is_quick() -> None:
    took_s = []
    for _ in range(3):
        start_s = time.perf_counter()
        done = insitu("--help")
        took_s.append(time.perf_counter() - start_s)
        assert done.returncode == 0
    for verb in ("chat", "generate", "serve", "pull", "list", "rm", "plan", "bench"):
        assert f"\n  {verb} " in done.stdout
    assert min(took_s) < 1.0  # 0.1 s on an idle machine; this one may be busy


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom insitu.cli.table import insitu\n"
        "try: insitu.main(['serve', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'numpy', 'rich', 'httpx', 'pydantic', 'starlette', 'uvicorn', 'tokenizers'}\n"
        "sys.exit(repr(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "No such command 'nothing': chat, generate, serve"),
        (["serve", "--port", "x"], "--port: a whole number is wanted, not 'x'"),
        (["serve", "--kv-cache-bytes", "much"], "--kv-cache-bytes: a size in bytes"),
        (["serve", "--prot", "1"], "No such option"),
        (["plan", "~nobody-of-that-name/model.gguf"], "is no file"),
        (["plan", ""], "'' is no file"),
        (["pull", ""], "an empty text"),
        (["pull", "~nobody-of-that-name/model.gguf"], "is neither in a catalogue"),
        (["serve", "--config", "/nowhere.toml"], "settings file /nowhere.toml: No such file"),
        (["serve", "--host", "::"], "give --api-key-file FILE, or --insecure"),
        (["serve", "--host", "192.0.2.1"], "give --api-key-file FILE, or --insecure"),
        (["serve", "--api-key-file", "/nowhere"], "API key file /nowhere: No such file"),
        (["generate", "no-such-model", "x"], "no-such-model"),
        (["generate", "smollm2-135m", "x", "--temperature", "-1"], "temperature must be"),
        (["generate", "smollm2-135m", "x", "--system", "y"], "--system needs --chat"),
        (["plan", "no-such-model"], "no-such-model"),
        (["rm", "no-such-model"], "no-such-model is not in"),
        (["pull", "no-such-model"], "no-such-model is neither in a catalogue"),
        (["pull", "ftp://a/b.gguf"], "models come over https"),
        (["pull", "--catalog", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_2(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = insitu(*arguments, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("insitu: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_port_in_use_is_said_before_a_model_is_looked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = insitu("serve", "no-such-model", "--port", str(port), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.startswith(f"insitu: cannot listen on 127.0.0.1 port {port}: ")
    assert done.stderr.count("\n") == 1


def test_a_model_that_is_not_here_names_the_command(tmp_path: Path) -> None:
    done = insitu("generate", "smollm2-135m", "x", "--models-dir", tmp_path)
    assert done.returncode == 2
    assert "insitu pull smollm2-135m" in done.stderr


def test_a_broken_model_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    for verb in (("generate", path, "x"), ("plan", path), ("serve", path), ("chat", path)):
        done = insitu(*verb)
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith(f"insitu: {path}")
        assert "Traceback" not in done.stderr


def test_plan_shows_which_file_it_is_and_whose_sampling_values_hold(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    asked = {"temp": 0.5, "penalty_repeat": 1.25, "mirostat": 2}
    write_gguf(path, pairs={f"general.sampling.{name}": one for name, one in asked.items()})
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    plan = json.loads(insitu("plan", path, "--json").stdout)
    assert plan["digest"] == digest
    assert plan["size_bytes"] == path.stat().st_size
    assert plan["sampling_defaults"] == {"temperature": 0.5, "repetition_penalty": 1.25}
    text = insitu("plan", path).stdout
    assert f"tiny (llama, {path.stat().st_size / 1e6:.1f} MB)\n{digest}\n" in text
    assert "  temperature = 0.5 (the model's)\n" in text
    assert "  repetition_penalty = 1.25 (the model's)\n" in text
    assert "note: the file: general.sampling.mirostat 2 is not applied." in text
    text = insitu("plan", path, "--sampling-defaults", "none").stdout
    assert "  temperature = 1 (insitu's)\n" in text
    assert "repetition_penalty" not in text
    assert "mirostat" not in text


def test_a_bad_sampling_value_is_named_and_can_be_left_aside(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, pairs={"general.sampling.temp": -1.0})
    done = insitu("plan", path)
    assert done.returncode == 2
    assert "key general.sampling.temp: is -1, below 0" in done.stderr
    assert insitu("plan", path, "--sampling-defaults", "none").returncode == 0


def test_a_chat_takes_the_models_temperature_unless_one_is_given(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, pairs={"general.sampling.temp": 0.0})

    def say(*flags: str) -> str:
        done = insitu("chat", path, "--max-tokens", "16", *flags, stdin="hello\n")
        assert done.returncode == 0, done.stderr
        return done.stdout

    greedy = say("--temperature", "0")
    assert say() == greedy
    assert say("--temperature", "0.7", "--seed", "1") != greedy
    # Where nobody says anything a conversation is at 0.7, whatever the seed makes of it.
    unsaid = say("--sampling-defaults", "none", "--seed", "1")
    assert unsaid == say("--temperature", "0.7", "--seed", "1")


def test_models_are_pulled_listed_and_removed(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    source.write_bytes(b"GGUF tiny")
    models_dir = tmp_path / "models"
    done = insitu("pull", source, "--models-dir", models_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{models_dir / 'tiny' / 'tiny.gguf'}\n"

    rows = json.loads(insitu("list", "--json", "--models-dir", models_dir).stdout)
    assert {row["name"]: row["pulled"] for row in rows} == {"tiny": True, "smollm2-135m": False}
    listed = insitu("list", "--models-dir", models_dir).stdout
    assert "tiny" in listed
    assert "insitu pull smollm2-135m" in listed

    assert insitu("rm", "tiny", "--models-dir", models_dir).stdout == "removed tiny\n"
    assert not (models_dir / "tiny").exists()
    assert insitu("rm", "tiny", "--models-dir", models_dir).returncode == 2


def test_the_models_folder_comes_from_the_settings_file_too(tmp_path: Path) -> None:
    source = tmp_path / "tiny.gguf"
    source.write_bytes(b"GGUF tiny")
    config = tmp_path / "insitu.toml"
    config.write_text(f'models_dir = "{tmp_path / "m"}"\n')
    done = insitu("pull", source, INSITU_CONFIG=str(config))
    assert done.stdout.strip() == str(tmp_path / "m" / "tiny" / "tiny.gguf")


@pytest.mark.parametrize("name", ["../up", "/etc", "."])
def test_rm_never_leaves_the_models_folder(tmp_path: Path, name: str) -> None:
    done = insitu("rm", name, "--models-dir", tmp_path / "models")
    assert done.returncode == 2
    assert "cannot name a model" in done.stderr


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "insitu", "list", "--models-dir", str(tmp_path)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()


def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "insitu", "list"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "insitu: cannot write the output: No space left on device.\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_nothing(closed: str) -> None:
    command = f"exec '{sys.executable}' -m insitu list {closed}"
    done = subprocess.run(
        ["/bin/sh", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_too_little_memory_is_one_line(smollm2_path: Path) -> None:
    limited = f"ulimit -v 400000; exec '{sys.executable}' -m insitu generate '{smollm2_path}' x"
    done = subprocess.run(
        ["/bin/sh", "-c", limited], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ulimit -v" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_model_that_gives_no_numbers_is_one_line(tmp_path: Path) -> None:
    weights = random_weights(TinyShape())
    weights["model.norm.weight"][:] = np.nan
    path = tmp_path / "m.gguf"
    write_gguf(path, weights=weights, block_types=BlockType.F32)
    done = insitu("generate", path, "hello", "--max-tokens", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("insitu: The model gave a number that is not finite")
    assert "Traceback" not in done.stderr
