"""Model files behind an ``https://`` address, resumed where the last attempt stopped.

An unfinished download is ``<file>.part`` beside ``<file>.part.json`` (the address and the
validator the server gave). It is continued only if the server confirms, through ``If-Range``, that
the file is still the same one; else it starts again.

Not here: digests (``store.verify``). Always true: plain ``http`` only ever reaches this machine.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from insitu.catalog.errors import BadSourceError, DownloadError

if TYPE_CHECKING:
    import httpx

    from insitu.catalog.progress import Progress

NUM_ATTEMPTS = 3
DIGEST = re.compile(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class UrlSource:
    """An address to fetch, the file name it gives, and its digest if the address pins one."""

    url: str
    file: str
    sha256: str | None

    @property
    def shown(self) -> str:
        """The address without credentials or query: what may be written down."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        return urlunsplit(
            (parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", "")
        )


def parse_url(text: str) -> UrlSource:
    """Read ``https://host/path/file.gguf[#sha256=...]``."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 (raises on a port that is none)
    except ValueError as error:
        raise BadSourceError(f"{text} is not an address: {error}.") from error
    check_scheme(parts.scheme, parts.hostname)
    file = unquote(PurePosixPath(parts.path).name)
    if not file or "/" in file or "\\" in file or "\0" in file or file.startswith("."):
        raise BadSourceError(f"{text} does not end in the name of a model file.")
    digest = None
    if parts.fragment:
        match = DIGEST.fullmatch(parts.fragment.lower())
        if match is None:
            raise BadSourceError("what follows # must be sha256= and 64 hexadecimal digits.")
        digest = match[1]
    return UrlSource(urlunsplit((*parts[:4], "")), file, digest)


def check_scheme(scheme: str, host: str | None) -> None:
    """Let https pass, and http to this machine alone."""
    if scheme == "https" and host:
        return
    if scheme == "http" and host and _is_loopback(host):
        return
    raise BadSourceError(
        f"{scheme}://{host or ''} is refused: models come over https (http only from this machine)."
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def fetch(source: UrlSource, work: Path, progress: Progress) -> Path:
    """Download the file into ``work``; return its path once it is whole."""
    import httpx  # noqa: PLC0415 (only a pull needs it)

    part = work / f"{source.file}.part"
    last: Exception | None = None
    for _ in range(NUM_ATTEMPTS):
        try:
            _attempt(source, part, progress)
        except httpx.HTTPError as error:
            last = error
        else:
            with contextlib.suppress(FileNotFoundError):
                _state_path(part).unlink()
            done = work / source.file
            os.replace(part, done)
            return done
    raise DownloadError(
        f"{source.shown}: {type(last).__name__}: {last}. What arrived is kept; run the same "
        "command again to go on from there."
    )


def _attempt(source: UrlSource, part: Path, progress: Progress) -> None:
    import httpx  # noqa: PLC0415

    with httpx.Client(
        follow_redirects=True,
        timeout=httpx.Timeout(30.0),
        event_hooks={"request": [lambda r: check_scheme(r.url.scheme, r.url.host)]},
    ) as client:
        offset, validator = _resumable(source, part)
        headers = {"Accept-Encoding": "identity"}
        if offset:
            headers |= {"Range": f"bytes={offset}-", "If-Range": validator}
        with client.stream("GET", source.url, headers=headers) as response:
            if response.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                part.unlink(missing_ok=True)
                raise httpx.RemoteProtocolError("the server no longer has the rest of the file")
            if response.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                raise DownloadError(f"{source.shown}: the server answered {response.status_code}.")
            start = _start(response, offset)
            _remember(source, part, response)
            _receive(response, part, start, progress)


def _resumable(source: UrlSource, part: Path) -> tuple[int, str]:
    """How many bytes of this very file are here, and the validator they came with."""
    try:
        state = json.loads(_state_path(part).read_text("utf-8"))
        if state["url"] == source.url and state["validator"]:
            return part.stat().st_size, str(state["validator"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return 0, ""


def _start(response: httpx.Response, offset: int) -> int:
    import httpx  # noqa: PLC0415

    if response.status_code == httpx.codes.OK:
        return 0
    match = re.match(r"bytes (\d+)-", response.headers.get("content-range", ""))
    if match is None or int(match[1]) != offset:
        raise httpx.RemoteProtocolError("the server answered with another range than was asked for")
    return offset


def _remember(source: UrlSource, part: Path, response: httpx.Response) -> None:
    etag = response.headers.get("etag", "")
    # Only a strong validator promises the same bytes (RFC 9110, 13.1.5).
    validator = "" if etag.startswith("W/") else etag
    state = {"url": source.url, "validator": validator or response.headers.get("last-modified", "")}
    path = _state_path(part)
    path.write_text(json.dumps(state), "utf-8")
    path.chmod(0o600)  # the address may carry a secret in its query


def _receive(response: httpx.Response, part: Path, start: int, progress: Progress) -> None:
    length = response.headers.get("content-length")
    progress.begin(f"downloading {part.stem}", start + int(length) if length else None)
    done = start
    with part.open("r+b" if start else "wb") as out:
        out.truncate(start)
        out.seek(start)
        for chunk in response.iter_raw():  # as it comes: what is here already survives a cut
            out.write(chunk)
            done += len(chunk)
            progress.at(done)


def _state_path(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")
