"""What can go wrong while pulling a model, each with the next thing to do in its text.

Not here: faults of the model file itself (weights names those when the file is opened).
"""

from __future__ import annotations


class CatalogError(Exception):
    """Base of every error this room raises for something a user can act on."""


class UnknownModelError(CatalogError):
    """A name that no catalogue holds and that is not a source either."""


class BadSourceError(CatalogError):
    """A source that cannot be used as written: scheme, name or digest."""


class DownloadError(CatalogError):
    """A fetch that failed; running the same command again resumes or restarts it."""


class WrongDigestError(CatalogError):
    """Bytes that are not the ones that were pinned; nothing of them is kept."""


class BrokenModelError(CatalogError):
    """A model that no reader opens; nothing of it is kept."""


class BadWheelError(CatalogError):
    """A wheel that does not hold what the catalogue says."""


class NameTakenError(CatalogError):
    """A model of that name is already pulled from somewhere else."""


class NotPulledError(CatalogError):
    """A model to be removed that is not there."""
