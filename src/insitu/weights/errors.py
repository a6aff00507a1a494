"""What is wrong with a model file, always with the file and the place in it.

Not here: models that are not here at all (``locate``) and downloads (``catalog``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ModelFileError(Exception):
    """A model file that is refused: ``where`` names the field (with its offset) or the key."""

    def __init__(self, path: Path | str, where: str, message: str) -> None:
        super().__init__(f"{path}: {where}: {message}")
        self.path = path
        self.where = where
        self.message = message


class UnsupportedModelError(ModelFileError):
    """A file that may be sound but uses something not implemented, which the message names."""


class CatalogueError(ModelFileError):
    """A catalogue that is not as the format wants it."""


def shown(text: str | bytes, limit: int = 80) -> str:
    """Text of a file, made safe for a message: quoted, escaped and cut."""
    cut = text[:limit]
    return ascii(cut) + ("..." if len(text) > limit else "")
