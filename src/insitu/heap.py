"""What the process asks of the C library's heap: memory that is let go of goes back to the system.

Not here: what is planned (``engine/plan``). Where the library is not glibc, nothing is asked.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# Of glibc's malloc (its malloc.h). Blocks from so many bytes on are mapped each and unmapped when
# they are freed: left to itself it keeps some, and more for every thread that has its own arena.
_M_MMAP_THRESHOLD, _MAPPED_BYTES = -3, 256 * 2**10
_M_ARENA_MAX, _MAX_ARENAS = -8, 2


def tune_heap() -> None:
    """For the whole process, once."""
    mallopt = _of_glibc("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)


def give_back() -> None:
    """What a large piece of work left free among what is still held."""
    # Collecting empties Python's lists of free objects, which lie scattered. There is nothing else
    # to find: what was just made is no rubbish.
    gc.freeze()
    gc.collect()
    gc.unfreeze()
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


@cache
def _of_glibc(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)
