"""Where insitu keeps what it can make again: the platform's cache folder.

Not here: what is kept there (``digest``, ``locate``'s models folder).
"""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/insitu where that is set to an absolute path, else ~/.cache/insitu."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    parent = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
    return parent / "insitu"
