"""Models of a hub, through huggingface_hub and a stand-in for its server on this machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from insitu.catalog import hub
from insitu.catalog.errors import BadSourceError, DownloadError
from insitu.catalog.pull import pull

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.conftest import FileServer

DATA = b"GGUF" + bytes(range(256)) * 8


def run_pull(
    tmp_path: Path, source: str, *flags: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The library reads its variables when imported: so a process of its own."""
    environment = os.environ | {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "insitu", "pull", source, *flags]
    command += ["--models-dir", str(tmp_path / "m")]
    return subprocess.run(
        command,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_file_comes_from_the_endpoint_that_is_set(
    file_server: FileServer, tmp_path: Path
) -> None:
    file_server.data, file_server.etag = DATA, f'"{hashlib.sha256(DATA).hexdigest()}"'
    done = run_pull(tmp_path, "hf:me/some-model/sub/tiny.gguf@v1", HF_ENDPOINT=file_server.url)
    assert done.returncode == 0, done.stderr
    path = tmp_path / "m" / "tiny" / "tiny.gguf"
    assert done.stdout.strip() == str(path)
    assert path.read_bytes() == DATA
    asked = [path for method, path, _ in file_server.requests if method == "GET"]
    assert "/me/some-model/resolve/v1/sub/tiny.gguf" in asked


def test_without_a_network_the_hub_is_not_asked_again_and_again(tmp_path: Path) -> None:
    done = run_pull(tmp_path, "hf:me/some-model/tiny.gguf", HF_ENDPOINT="http://hub.invalid")
    assert done.returncode == 2
    assert "no network?" in done.stderr
    assert "Retrying" not in done.stderr


def test_a_digest_pins_a_hubs_file(file_server: FileServer, tmp_path: Path) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    file_server.data, file_server.etag = DATA, f'"{digest}"'
    source = "hf:me/some-model/tiny.gguf"
    done = run_pull(tmp_path, source, "--sha256", "0" * 64, HF_ENDPOINT=file_server.url)
    assert done.returncode == 2
    assert f"its SHA-256 is {digest}, pinned is 0000" in done.stderr
    assert not (tmp_path / "m" / "tiny").exists()
    done = run_pull(tmp_path, source, "--sha256", digest, HF_ENDPOINT=file_server.url)
    assert done.returncode == 0, done.stderr


def test_offline_and_not_cached_is_one_line_with_what_to_do(tmp_path: Path) -> None:
    done = run_pull(tmp_path, "hf:me/some-model/tiny.gguf", HF_HUB_OFFLINE="1")
    assert done.returncode == 2
    assert done.stderr.startswith("downloading tiny.gguf\ninsitu: hf:me/some-model/tiny.gguf: ")
    assert str(tmp_path / "m" / "tiny" / "tiny.gguf") in done.stderr
    assert "Traceback" not in done.stderr


def test_offline_and_cached_needs_no_server(file_server: FileServer, tmp_path: Path) -> None:
    file_server.data, file_server.etag = DATA, f'"{hashlib.sha256(DATA).hexdigest()}"'
    source = "hf:me/some-model/tiny.gguf"
    assert run_pull(tmp_path, source, HF_ENDPOINT=file_server.url).returncode == 0
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    done = run_pull(tmp_path, source, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "m" / "tiny" / "tiny.gguf").read_bytes() == DATA


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match=r"pip install 'insitu\[hub\]'"):
        pull("hf:me/some-model/tiny.gguf", tmp_path)


@pytest.mark.parametrize(
    "text", ["hf:", "hf:owner", "hf:owner/repo", "hf:owner/repo/", "hf:o/r/../../x", "hf:o/r/f@"]
)
def test_names_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(BadSourceError, match="is not hf:owner/repository/file"):
        hub.parse_hub(text)
