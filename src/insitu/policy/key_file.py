"""A key file that is read again when it changes, so that a key can be given or taken at any time.

Always true: a file that cannot be used leaves the keys as they were and is complained of once; a
key that was taken out is nobody's within ``CHECK_S``.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from insitu.policy.keys import KeyFileError, KeyRing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from insitu.policy.limits import Limits
    from insitu.types import Caller

CHECK_S = 1.0

logger = logging.getLogger("insitu.policy")


class KeyFile:
    """The keys of a file as it stands."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the file, or raise ``KeyFileError``."""
        self._path = path
        self._clock = clock
        self._state = self._look()
        self._ring = KeyRing.read(path)
        self._checked_s = clock()

    def authenticate(self, presented: str | None) -> Caller | None:
        """Who presents this key; None for nobody we know."""
        now_s = self._clock()
        if now_s - self._checked_s >= CHECK_S:
            self._checked_s = now_s
            self._read_again()
        return self._ring.authenticate(presented)

    def limits_of(self, caller: Caller) -> Limits:
        """What the file says a tenant may ask for."""
        return self._ring.limits_of(caller)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read_again(self) -> None:
        state = self._look()
        if state == self._state:
            return
        self._state = state
        try:
            self._ring = KeyRing.read(self._path)
        except KeyFileError as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.warning("API key file %s was read again: %d keys", self._path, len(self._ring))
