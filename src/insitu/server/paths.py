"""Every path there is: who may ask it, and what a request to it is counted as.

Not here: endpoints (``app``). Always true: a path that is not here needs a key like any other, and
a test compares this table with the router's own list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache


class Access(StrEnum):
    """Who may ask, where keys are in use: anybody, any key, or a key with the admin scope."""

    OPEN = "open"
    USER = "user"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Place:
    """A path, or a template of paths with one name in braces.

    ``is_work`` holds a drain off and is refused during one; a *generation* is counted by route and
    outcome.
    """

    template: str
    access: Access = Access.USER
    is_work: bool = False
    is_generation: bool = False


def _generation(template: str) -> Place:
    return Place(template, is_work=True, is_generation=True)


def _work(template: str) -> Place:
    return Place(template, is_work=True)


# What is not in the table, under one name: labels must not be the caller's to invent.
ELSEWHERE = Place("other")

PLACES = (
    Place("/health", Access.OPEN),
    Place("/health/ready", Access.OPEN),
    Place("/health/live", Access.OPEN),
    Place("/metrics", Access.ADMIN),
    Place("/openapi.json"),
    Place("/v1/models"),
    Place("/v1/models/{model_id}"),
    _generation("/v1/chat/completions"),
    _generation("/v1/completions"),
    _generation("/v1/embeddings"),
    _generation("/v1/responses"),
    _generation("/v1/messages"),
    _work("/v1/messages/count_tokens"),
    _generation("/api/chat"),
    _generation("/api/generate"),
    _generation("/api/embed"),
    _generation("/api/embeddings"),
    Place("/api/tags"),
    Place("/api/ps"),
    Place("/api/show"),
    Place("/api/version"),
    Place("/v1/files"),
    Place("/v1/files/{file_id}/content"),
    Place("/v1/files/{file_id}"),
    Place("/v1/batches"),
    Place("/v1/batches/{batch_id}/cancel"),
    Place("/v1/batches/{batch_id}"),
    _work("/v1/tokenize"),
    _work("/v1/detokenize"),
)
_EXACT = {place.template: place for place in PLACES if "{" not in place.template}
_WITH_NAMES = tuple(place for place in PLACES if "{" in place.template)


def place_of(path: str) -> Place:
    """The place of a path; ``ELSEWHERE`` where there is nothing."""
    exact = _EXACT.get(path)
    if exact is not None:
        return exact
    return next((one for one in _WITH_NAMES if _pattern(one.template).fullmatch(path)), ELSEWHERE)


@cache
def _pattern(template: str) -> re.Pattern[str]:
    """A name is one segment, except at the end of a path, where it may hold slashes."""
    parts = re.split(r"(\{\w+\})", template)
    names = ["[^/]+" if one.startswith("{") else re.escape(one) for one in parts if one]
    if template.endswith("}"):
        names[-1] = ".+"
    return re.compile("".join(names))
