"""Models of this machine: regular files alone are copied, and nothing hangs or fills the disk."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from tiny_model import write_gguf, write_safetensors

from insitu.catalog.errors import BadSourceError, BrokenModelError
from insitu.catalog.pull import pull
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path


def test_a_link_to_a_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero.gguf").symlink_to("/dev/zero")
    with pytest.raises(BadSourceError, match="is not a regular file"):
        pull(str(tmp_path / "zero.gguf"), tmp_path / "models")


@pytest.mark.parametrize("kind", ["device", "fifo"])
def test_a_folder_that_holds_anything_else_is_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "m"
    write_safetensors(folder)
    if kind == "device":
        (folder / "x.json").symlink_to("/dev/zero")
    else:
        os.mkfifo(folder / "x.json")
    with pytest.raises(BadSourceError, match=r"x\.json is not a regular file"):
        pull(str(folder), tmp_path / "models")


def test_a_folder_around_the_models_folder_is_copied_once(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    write_safetensors(folder)
    (folder / ".git").mkdir()
    (folder / "up").symlink_to("..")
    pulled = pull(str(folder), folder / "models")
    names = {path.name for path in pulled.path.iterdir()} - {".insitu.json"}
    assert names == {path.name for path in folder.iterdir() if path.is_file()}
    open_source(pulled.path).close()


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    write_gguf(tmp_path / "blob")
    (tmp_path / "m.gguf").symlink_to("blob")
    pulled = pull(str(tmp_path / "m.gguf"), tmp_path / "models")
    assert not pulled.path.is_symlink()
    assert pulled.path.read_bytes() == (tmp_path / "blob").read_bytes()


def test_a_file_cut_short_is_refused_and_nothing_of_it_is_kept(tmp_path: Path) -> None:
    whole, models = tmp_path / "tiny.gguf", tmp_path / "models"
    write_gguf(whole)
    assert pull(str(whole), models, name="whole").path.is_file()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:-1000])
    with pytest.raises(BrokenModelError, match=r"cut\.gguf: tensor .* needs"):
        pull(str(cut), models)
    assert not (models / "cut").exists()
