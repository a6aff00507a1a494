"""The catalogue that comes with the package, and its default model.

Not here: reading catalogues (``weights.catalogue`` does, for ``locate`` needs it too).
"""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).with_name("models.toml")
DEFAULT_MODEL = "smollm2-135m"
