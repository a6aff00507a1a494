"""``python -m insitu`` is the ``insitu`` command."""

from __future__ import annotations

from insitu.cli.table import main

if __name__ == "__main__":
    main()
