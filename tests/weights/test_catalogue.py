"""Catalogues: read strictly, each fault with its entry and key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import insitu
from insitu.weights.catalogue import CatalogueError, read_catalogue

if TYPE_CHECKING:
    from insitu.weights.catalogue import CatalogEntry

GOOD = """
[models."a.b-1"]
file = "m.gguf"
licence = "MIT"
size_bytes = 4
sha256 = "{digest}"
note = "small"
parts = [{{ package = "p-1", version = "0.1.2", member = "p/data/m.part01" }}]
""".format(digest="0123456789abcdef" * 4)
FOLDER = GOOD.replace("parts = [{", "folder = {").replace("}]", "}").replace("m.part01", "")


def read(tmp_path: Path, text: str | bytes) -> dict[str, CatalogEntry]:
    """Read this text as a catalogue."""
    path = tmp_path / "models.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_catalogue(path)


def test_entries_are_read(tmp_path: Path) -> None:
    entry = read(tmp_path, GOOD)["a.b-1"]
    assert (entry.file, entry.size_bytes, entry.folder) == ("m.gguf", 4, None)
    assert entry.parts[0].member == "p/data/m.part01"
    folder = read(tmp_path, FOLDER)["a.b-1"].folder
    assert folder is not None
    assert folder.member == "p/data/"
    assert read(tmp_path, "") == {}


def test_the_shipped_catalogue_is_sound() -> None:
    shipped = Path(str(insitu.__file__)).with_name("catalog") / "models.toml"
    assert list(read_catalogue(shipped)) == ["smollm2-135m"]


CHANGES = {
    "unknown key": ('note = "small"', "extra = 1", "a.b-1.extra: is not known"),
    "unknown table": ("[models.", "[model.", "model"),
    "name": ('"a.b-1"', '"../a"', "is not a name"),
    "name with a line feed": ('"a.b-1"', '"a\\nb"', "is not a name"),
    "file": ('"m.gguf"', '"../m.gguf"', "a.b-1.file"),
    "missing file": ('file = "m.gguf"', "", "file: is missing"),
    "size": ("size_bytes = 4", 'size_bytes = "4"', "size_bytes"),
    "size 0": ("size_bytes = 4", "size_bytes = 0", "size_bytes"),
    "size true": ("size_bytes = 4", "size_bytes = true", "size_bytes"),
    "digest": ("0123456789abcdef", "0123456789ABCDEF", "sha256"),
    "licence": ('licence = "MIT"', "licence = 5", "licence: must be a string"),
    "package": ('"p-1"', '"p-1 --index-url x"', "package"),
    "package option": ('"p-1"', '"-r"', "package"),
    "version": ('"0.1.2"', '"0.1 ; x"', "version"),
    "member": ('"p/data/m.part01"', '"p/../m"', "member"),
    "absolute member": ('"p/data/m.part01"', '"/etc/hostname"', "member"),
    "member a folder": ("m.part01", "", "must be a file"),
    "no parts": ("parts = [{", "parts = []\nx = [{", "parts"),
    "both": ("note =", "folder = {}\nnote =", "not both"),
    "neither": ("parts = [", "x = [", "x: is not known"),
    "part's key": ("member =", "members =", "members: is not known"),
    "part a string": ('parts = [{ package = "p-1", ', 'parts = ["x"] # ', "must be a table"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_faults_are_named(tmp_path: Path, name: str) -> None:
    old, new, match = CHANGES[name]
    assert old in GOOD
    with pytest.raises(CatalogueError, match=match):
        read(tmp_path, GOOD.replace(old, new))


@pytest.mark.parametrize("text", [b"[models", b"\xff", b"models = 5", b"[models]\na = 1"])
def test_what_is_no_catalogue_is_named(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(CatalogueError, match=r"models\.toml"):
        read(tmp_path, text)


def test_only_regular_files_of_a_bounded_size(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="above"):
        read(tmp_path, b"#" * (2 << 20))
    with pytest.raises(CatalogueError, match="not a regular file"):
        read_catalogue(Path("/dev/zero"))
    with pytest.raises(CatalogueError, match="cannot be opened"):
        read_catalogue(tmp_path / "absent.toml")
