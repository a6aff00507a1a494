"""API keys: read from a file, kept as hashes, compared in constant time, read again when changed.

    # a comment
    s3cr3t-key-of-somebody             a plain key; its tenant is called key-1, key-2, ...
    alice:another-long-key             a key with the tenant's name before the first colon
    bob:sha256:0f1e...                 the SHA-256 of a key, in 64 hexadecimal digits
    ops:a-third-key admin              words after a key: what it may do, and how much
    carol:a-fourth-key requests_per_minute=60 tokens_per_day=100000

Not here: headers (``server`` reads them) and counting (``gate``). Always true: no key is kept as it
was written, and the time of a check does not depend on which key matches, or on how far.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from insitu.policy.limits import Limits
from insitu.types import Caller

if TYPE_CHECKING:
    from pathlib import Path

MIN_KEY_CHARS = 8
MAX_KEY_CHARS = 512
MAX_FILE_BYTES = 1 << 20
TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# What a header can carry without quoting: visible ASCII.
KEY = re.compile(r"[\x21-\x7e]+")
_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LIMIT = re.compile(r"(\w+)=([1-9]\d{0,14})")
_LIMIT_NAMES = tuple(one.name for one in fields(Limits))


class KeyFileError(Exception):
    """A key file that cannot be used: its path, the line, and what is wrong (never the key)."""


@dataclass(frozen=True, slots=True)
class KeyLine:
    """What a line says: the key's SHA-256, whose it is, and how much they may ask for."""

    hashed: bytes
    caller: Caller
    limits: Limits = Limits()  # noqa: RUF009 - frozen


@dataclass(frozen=True, slots=True)
class _Entry:
    digest: bytes
    caller: Caller


class KeyRing:
    """The keys of one file."""

    def __init__(self, lines: list[KeyLine]) -> None:
        self._salt = os.urandom(32)
        self._entries = tuple(_Entry(self._digest(one.hashed), one.caller) for one in lines)
        self._limits = {one.caller.tenant: one.limits for one in lines}

    @classmethod
    def read(cls, path: Path) -> KeyRing:
        """The keys of a file; every fault is named with its line."""
        return cls(_parse(_text_of(path), path))

    def __len__(self) -> int:
        return len(self._entries)

    def authenticate(self, presented: str | None) -> Caller | None:
        """Who presents this key; None for nobody we know."""
        shown = (presented or "")[: MAX_KEY_CHARS + 1]
        digest = self._digest(_sha256(shown))
        found: Caller | None = None
        for entry in self._entries:  # all of them, whichever matches
            if hmac.compare_digest(entry.digest, digest):
                found = entry.caller
        return found

    def limits_of(self, caller: Caller) -> Limits:
        """What the file says a tenant may ask for."""
        return self._limits.get(caller.tenant, Limits())

    def _digest(self, hashed: bytes) -> bytes:
        return hashlib.blake2b(hashed, key=self._salt).digest()


def _sha256(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


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


def _parse(text: str, path: Path) -> list[KeyLine]:
    lines: list[KeyLine] = []
    num_plain = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        where = f"API key file {path}, line {number}"
        written, *words = stripped.split()
        tenant, colon, key = written.partition(":")
        if not colon or _HASHED.fullmatch(written):
            num_plain += 1
            tenant, key = f"key-{num_plain}", written
        made = _line(tenant, key, words, where)
        _check_beside(made, lines, where)
        lines.append(made)
    if not lines:
        raise KeyFileError(f"API key file {path}: holds no key.")
    return lines


def _line(tenant: str, key: str, words: list[str], where: str) -> KeyLine:
    _check(tenant, key, where)
    limits: dict[str, int] = {}
    is_admin = False
    for place, word in enumerate(words, 1):
        match = _LIMIT.fullmatch(word)
        if word == "admin":
            is_admin = True
        elif match is not None and match[1] in _LIMIT_NAMES:
            limits[match[1]] = int(match[2])
        else:
            known = ", ".join(f"{name}=N" for name in _LIMIT_NAMES)
            raise KeyFileError(f"{where}: word {place} after the key is none of admin, {known}.")
    hashed = _HASHED.fullmatch(key)
    digest = bytes.fromhex(hashed[1]) if hashed else _sha256(key)
    return KeyLine(digest, Caller(tenant, is_admin=is_admin), Limits(**limits))


def _check_beside(made: KeyLine, lines: list[KeyLine], where: str) -> None:
    """A tenant may have several keys, one limit of each kind, and no key twice."""
    for other in lines:
        if other.hashed == made.hashed:
            raise KeyFileError(f"{where}: the same key stands on an earlier line.")
        if other.caller.tenant == made.caller.tenant and other.limits != made.limits:
            raise KeyFileError(f"{where}: this name has other limits on an earlier line.")


def _check(tenant: str, key: str, where: str) -> None:
    if not TENANT.fullmatch(tenant):
        raise KeyFileError(f"{where}: the name before the colon must be A-Z a-z 0-9 . _ -.")
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        raise KeyFileError(f"{where}: a key has {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters.")
    if not KEY.fullmatch(key):
        raise KeyFileError(f"{where}: a key holds visible ASCII characters only, and no spaces.")
