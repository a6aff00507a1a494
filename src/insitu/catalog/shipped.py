"""The default model of the catalogue that comes with the package.

Not here: reading that catalogue, or where it is (``weights.catalogue``: ``locate`` needs both).
"""

from __future__ import annotations

DEFAULT_MODEL = "smollm2-135m"
