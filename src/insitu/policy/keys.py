"""API keys: read from a file once, kept as hashes, compared in constant time.

    # a comment
    s3cr3t-key-of-somebody          a plain key; its tenant is called key-1, key-2, ...
    alice:another-long-key          a key with the tenant's name before the first colon

Not here: headers (``server`` reads them) and what a tenant may do. Always true: no key is kept as
it was written, and the time of a check does not depend on which key matches, or on how far.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from insitu.types import Caller

if TYPE_CHECKING:
    from pathlib import Path

MIN_KEY_CHARS = 8
MAX_KEY_CHARS = 512
MAX_FILE_BYTES = 1 << 20
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a header can carry without quoting: visible ASCII.
KEY = re.compile(r"[\x21-\x7e]+")


class KeyFileError(Exception):
    """A key file that cannot be used: its path, the line, and what is wrong (never the key)."""


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    caller: Caller


class KeyRing:
    """The keys of one file."""

    def __init__(self, keys: list[tuple[str, str]]) -> None:
        """Take (tenant, key) pairs and forget the keys."""
        self._salt = os.urandom(32)
        self._entries = tuple(_Entry(self._digest(key), Caller(tenant)) for tenant, key in keys)

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """The keys of a file; every fault is named with its line."""
        return cls(_parse(_text_of(path), path))

    def __len__(self) -> int:
        return len(self._entries)

    def authenticate(self, presented: str | None) -> Caller | None:
        """Who presents this key; None for nobody we know."""
        digest = self._digest((presented or "")[: MAX_KEY_CHARS + 1])
        found: Caller | None = None
        for entry in self._entries:  # all of them, whichever matches
            if hmac.compare_digest(entry.digest, digest):
                found = entry.caller
        return found

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), key=self._salt).digest()


def _text_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"API key file {path}: {error.strerror}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise KeyFileError(f"API key file {path}: over {MAX_FILE_BYTES} bytes.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KeyFileError(f"API key file {path}: not UTF-8 text.") from error


def _parse(text: str, path: Path) -> list[tuple[str, str]]:
    keys: list[tuple[str, str]] = []
    seen: set[str] = set()
    num_plain = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"API key file {path}, line {number}"
        tenant, colon, key = stripped.partition(":")
        if not colon:
            num_plain += 1
            tenant, key = f"key-{num_plain}", stripped
        _check(tenant, key.strip(), where)
        if key.strip() in seen:
            raise KeyFileError(f"{where}: the same key stands on an earlier line.")
        seen.add(key.strip())
        keys.append((tenant, key.strip()))
    if not keys:
        raise KeyFileError(f"API key file {path}: holds no key.")
    return keys


def _check(tenant: str, key: str, where: str) -> None:
    if not TENANT.fullmatch(tenant):
        raise KeyFileError(f"{where}: the name before the colon must be A-Z a-z 0-9 . _ -.")
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        raise KeyFileError(f"{where}: a key has {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters.")
    if not KEY.fullmatch(key):
        raise KeyFileError(f"{where}: a key holds visible ASCII characters only, and no spaces.")
