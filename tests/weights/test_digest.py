"""Digests: right, remembered, and computed again as soon as the file may have changed."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING

import pytest
from tiny_model import write_gguf, write_safetensors

from insitu.weights.digest import TABLE, file_digest
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path


def sha256(raw: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(raw).hexdigest()


def test_it_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tmp_path / "m", tmp_path / "cache"
    path.write_bytes(b"abc")
    assert file_digest(path, cache) == sha256(b"abc")
    monkeypatch.setattr(hashlib, "file_digest", pytest.fail)
    assert file_digest(path, cache) == sha256(b"abc")
    assert [p.name for p in cache.iterdir()] == [TABLE]


def test_another_mtime_size_or_inode_is_another_file(tmp_path: Path) -> None:
    path, cache = tmp_path / "m", tmp_path / "cache"
    path.write_bytes(b"abc")
    file_digest(path, cache)
    status = path.stat()
    (tmp_path / "n").write_bytes(b"abd")
    os.utime(tmp_path / "n", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(tmp_path / "n", path)  # same size and mtime, another inode
    assert file_digest(path, cache) == sha256(b"abd")
    os.utime(path, ns=(0, 1))
    with path.open("r+b") as file:
        file.write(b"x")
    assert file_digest(path, cache) == sha256(b"xbd")


@pytest.mark.parametrize("table", [b"", b"[]", b"{", b'{"a":[1]}', b"\xff", b"[" * 100_000])
def test_a_broken_table_is_made_again(tmp_path: Path, table: bytes) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"abc")
    (tmp_path / TABLE).write_bytes(table)
    assert file_digest(path, tmp_path) == sha256(b"abc")
    assert sha256(b"abc") in json.loads((tmp_path / TABLE).read_bytes())[str(path)]


def test_without_a_place_to_write_it_is_still_right(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"abc")
    assert file_digest(path, path / "below a file") == sha256(b"abc")


def test_a_file_changed_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"abc")
    real = hashlib.file_digest

    def changing(file: object, name: str) -> object:
        path.write_bytes(b"abcd")
        return real(file, name)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "file_digest", changing)
    with pytest.raises(ModelFileError, match="was changed"):
        file_digest(path, tmp_path / "cache")


def test_sources_digest_the_file_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_gguf(tmp_path / "m.gguf")
    write_safetensors(tmp_path / "twin")
    weights = tmp_path / "twin" / "model.safetensors"
    assert open_source(tmp_path / "m.gguf").digest() == sha256((tmp_path / "m.gguf").read_bytes())
    assert open_source(tmp_path / "twin").digest() == sha256(weights.read_bytes())
    assert (tmp_path / "cache" / "insitu" / TABLE).is_file()
