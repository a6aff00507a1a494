"""Names and paths to files: in a fixed order, never outside the models folder, never fetched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_model import write_gguf, write_safetensors

from insitu.weights.errors import ModelFileError
from insitu.weights.locate import ModelNotFound, ModelNotPulled, default_models_dir, resolve
from insitu.weights.source import open_source

ENTRY = """
[models.{name}]
file = "{name}.gguf"
licence = "MIT"
size_bytes = 4
sha256 = "{digest}"
parts = [{{ package = "p", version = "1", member = "p/m.gguf" }}]
"""


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalogue of two models."""
    path = tmp_path / "models.toml"
    entries = (ENTRY.format(name=name, digest="0" * 64) for name in ("here", "away"))
    path.write_text("".join(entries))
    return path


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    """A models folder with ``here`` pulled, ``twin`` a folder, ``by-hand`` without a record."""
    models = tmp_path / "models"
    for name in ("here", "by-hand", ".staging-x"):
        (models / name).mkdir(parents=True)
        write_gguf(models / name / "m.gguf")
    (models / "here" / ".insitu.json").write_text(json.dumps({"name": "here", "file": "m.gguf"}))
    write_safetensors(models / "twin")
    (models / "twin" / ".insitu.json").write_text(json.dumps({"name": "twin", "file": None}))
    return models


def test_a_path_that_exists_comes_first(
    tmp_path: Path, models_dir: Path, catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_gguf(tmp_path / "here")
    located = resolve("here", models_dir, catalog)
    assert (located.path, located.name) == (Path("here"), "here")
    write_gguf(tmp_path / "my.model.gguf")
    assert resolve(tmp_path / "my.model.gguf", models_dir).name == "my.model"


def test_then_a_pulled_name(models_dir: Path, catalog: Path) -> None:
    located = resolve("here", models_dir, catalog)
    assert located.path == models_dir / "here" / "m.gguf"
    assert located.name == "here"
    for name in ("twin", "by-hand"):
        open_source(resolve(name, models_dir, [catalog]).path).close()


def test_a_known_name_says_how_to_pull_it(models_dir: Path, catalog: Path) -> None:
    with pytest.raises(ModelNotPulled, match="`insitu pull away`"):
        resolve("away", models_dir, catalog)


@pytest.mark.parametrize(
    "name", ["nope", "../models.toml/x", "..%2f..%2f", "a\nb", "", "a\0b", ".staging-x", "x" * 5000]
)
def test_any_other_name_is_not_found(
    models_dir: Path, catalog: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models_dir.parent / "models" / "here")
    with pytest.raises(ModelNotFound) as caught:
        resolve(name, models_dir, catalog)
    assert not isinstance(caught.value, ModelNotPulled)
    assert "away, by-hand, here, twin" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("source", ["hf:me/models/m.gguf", "https://models.example/m.gguf"])
def test_a_source_is_what_was_pulled_from_it_or_how_to_pull_it(
    models_dir: Path, source: str
) -> None:
    with pytest.raises(ModelNotPulled, match=f"run `insitu pull {source}`"):
        resolve(source, models_dir)
    record = {"name": "here", "file": "m.gguf", "source": source, "sha256": "ab"}
    (models_dir / "here" / ".insitu.json").write_text(json.dumps(record))
    (models_dir / "twin" / ".insitu.json").write_text("{")
    for text in (source, f"{source}#sha256=ab"):
        located = resolve(text, models_dir)
        assert (located.path, located.name) == (models_dir / "here" / "m.gguf", "here")
    with pytest.raises(ModelNotPulled, match=f"run `insitu pull '{source}#sha256=cd'`"):
        resolve(f"{source}#sha256=cd", models_dir)


@pytest.mark.parametrize("record", ['{"file": "../../secret"}', "[]", "{", '{"file": 5}'])
def test_a_record_is_distrusted(models_dir: Path, record: str) -> None:
    (models_dir / "here" / ".insitu.json").write_text(record)
    with pytest.raises(ModelFileError, match=r"insitu\.json"):
        resolve("here", models_dir)


def test_a_folder_of_two_models_is_ambiguous(models_dir: Path) -> None:
    write_gguf(models_dir / "by-hand" / "n.gguf")
    with pytest.raises(ModelFileError, match=r"2 \.gguf files"):
        open_source(resolve("by-hand", models_dir).path)


def test_models_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_models_dir() == tmp_path / "insitu" / "models"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_models_dir() == tmp_path / ".cache" / "insitu" / "models"
