"""Model files of a hub: ``hf:owner/repository/path/file[@revision]``.

Downloading, resuming and signing in are ``huggingface_hub``'s, an extra of this package; so its
variables hold (HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN, HF_HOME) and its cache is shared with other
programs of this machine.

Not here: digests (``store.verify``).
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from insitu.catalog.errors import BadSourceError, DownloadError

PREFIX = "hf:"
# owner / repository / path of the file [@ revision]
FORM = re.compile(r"hf:([\w.-]+/[\w.-]+)/([^@]+?)(?:@([\w./-]+))?")


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a repository, at a revision (None: its main branch), perhaps with its digest."""

    repository: str
    path: str
    revision: str | None
    sha256: str | None = None

    @property
    def file(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.path).name

    @property
    def shown(self) -> str:
        """The name as a user writes it."""
        return f"{PREFIX}{self.repository}/{self.path}" + (
            f"@{self.revision}" if self.revision else ""
        )


def parse_hub(text: str) -> HubSource:
    """Read ``hf:owner/repository/path/file[@revision]``."""
    match = FORM.fullmatch(text)
    if match is None or ".." in PurePosixPath(match[2]).parts:
        raise BadSourceError(f"{text} is not hf:owner/repository/file (optionally @revision).")
    return HubSource(match[1], match[2], match[3])


def fetch(source: HubSource, staging: Path) -> Path:
    """Put the file into ``staging``; return its path."""
    try:
        from huggingface_hub import constants, hf_hub_download  # noqa: PLC0415 (an extra, slow to import)
    except ImportError as error:
        raise DownloadError(
            f"{source.shown} needs an extra: pip install 'insitu[hub]' and run the command again."
        ) from error
    is_found = _is_found(constants.ENDPOINT)
    try:
        cached = Path(
            hf_hub_download(
                source.repository,
                source.path,
                revision=source.revision,
                local_files_only=not is_found,
            )
        )
    except Exception as error:  # the library has dozens, most of them its HTTP client's
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if not is_found:
            reason = (
                "the hub's host has no address here (no network?), and its cache has no such file"
            )
        raise DownloadError(f"{source.shown}: {reason}") from error
    target = staging / source.file
    try:
        os.link(cached.resolve(), target)  # the hub's cache never rewrites a file
    except OSError:
        shutil.copyfile(cached, target)
    return target


def _is_found(endpoint: str) -> bool:
    """Whether the hub's host can be asked: without this its library tries for half a minute."""
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True  # a proxy finds it
    try:
        socket.getaddrinfo(urlsplit(endpoint).hostname, None)
    except OSError:
        return False
    return True
