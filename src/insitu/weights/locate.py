"""From what a user types to a local model file: a path, a pulled model, or how to get it.

Not here: downloading (``catalog``) or opening (``source``). The models folder is
``<models_dir>/<name>/`` a model, with a record ``.insitu.json`` of which file it is.

Always true: a name never leads outside the models folder; nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insitu.weights.cache_dir import cache_dir
from insitu.weights.catalogue import is_safe_name, read_catalogue
from insitu.weights.errors import ModelFileError
from insitu.weights.mapped_file import read_bounded

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Located",
    "ModelNotFound",
    "ModelNotPulled",
    "default_models_dir",
    "is_safe_name",
    "resolve",
]

RECORD = ".insitu.json"
MAX_RECORD_BYTES = 1 << 16
HUB_PREFIX = "hf:"
SUFFIXES = (".gguf", ".safetensors")


@dataclass(frozen=True, slots=True)
class Located:
    """A model that is here; ``name`` is the pulled name, or the path's last part without suffix."""

    path: Path
    name: str


class ModelNotFound(Exception):
    """Neither a path nor a name that anything knows; the message lists the names there are."""


class ModelNotPulled(ModelNotFound):
    """A name of a catalogue whose model is not here; the message says how to pull it."""


def default_models_dir() -> Path:
    """Where models are kept unless a setting says otherwise."""
    return cache_dir() / "models"


def resolve(
    name_or_path: str | Path, models_dir: Path, catalogs: Path | Sequence[Path] = ()
) -> Located:
    """The model's file or folder: an existing path first, then a pulled name."""
    text = os.fspath(name_or_path)
    path = Path(os.path.expanduser(text))  # as it is where ~ is nobody's
    if "\0" not in text and text and os.path.exists(path):
        return Located(path, _name_of(path))
    folder = models_dir.expanduser()
    if is_safe_name(text) and (folder / text).is_dir():
        return Located(_pulled_path(folder / text), text)
    paths = (catalogs,) if isinstance(catalogs, Path) else tuple(catalogs)
    known = {name for catalog in paths for name in read_catalogue(catalog)}
    if text in known:
        raise ModelNotPulled(f"{text} is not here yet: run `insitu pull {text}`.")
    if "://" in text or text.startswith(HUB_PREFIX):
        if (name := _name_of_source(text, folder)) is not None:
            return Located(_pulled_path(folder / name), name)
        command = f"insitu pull {shlex.quote(text)}"
        raise ModelNotPulled(
            f"{text} is a source, and nothing from there is here: run `{command}`."
        )
    names = ", ".join(sorted(known | _pulled_names(folder)))
    raise ModelNotFound(
        f"{text!r} is no file, and no model is called so. Known: {names or 'none'}."
    )


def _name_of_source(source: str, models_dir: Path) -> str | None:
    """The name of the model that was pulled from an address or a hub, if there is one."""
    shown, _, pin = source.partition("#")
    for name in sorted(_pulled_names(models_dir)):
        try:
            record = _record(models_dir / name) or {}
        except ModelFileError:
            continue  # another model's fault, said when that one is asked for
        is_pinned = pin in ("", f"sha256={record.get('sha256')}")
        if record.get("source") == shown and is_pinned:
            return name
    return None


def _name_of(path: Path) -> str:
    name = Path(os.path.abspath(path)).name
    return name.removesuffix(path.suffix) if path.suffix in SUFFIXES else name


def _pulled_path(folder: Path) -> Path:
    """The file that the record names; without a record the folder, which holds one model."""
    record = _record(folder)
    if record is None:
        return folder
    file = record.get("file")
    if file is None:
        return folder
    if not isinstance(file, str) or not is_safe_name(file):
        raise ModelFileError(folder / RECORD, "file", "does not name the model's file")
    return folder / file


def _record(folder: Path) -> dict[str, Any] | None:
    """What is written of a pulled model; None where nothing is."""
    record = folder / RECORD
    if not os.path.lexists(record):
        return None
    try:
        values = json.loads(read_bounded(record, MAX_RECORD_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(record, "file", "is not JSON") from error
    if not isinstance(values, dict):
        raise ModelFileError(record, "file", "is not a JSON object")
    return values


def _pulled_names(models_dir: Path) -> set[str]:
    try:
        names = os.listdir(models_dir)
    except OSError:
        return set()
    return {name for name in names if is_safe_name(name) and (models_dir / name).is_dir()}
