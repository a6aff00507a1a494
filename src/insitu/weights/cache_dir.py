"""Where insitu keeps what it can make again: the platform's cache folder.

Not here: what is kept there (``digest``, ``locate``'s models folder).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """$XDG_CACHE_HOME/insitu where that is set to an absolute path, else ~/.cache/insitu.

    A user without a home has it below the folder for temporary files.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    home = os.path.expanduser("~")
    if not os.path.isabs(named) and not os.path.isabs(home):  # a user without a home
        home = tempfile.gettempdir()
    return Path(named if os.path.isabs(named) else os.path.join(home, ".cache")) / "insitu"
