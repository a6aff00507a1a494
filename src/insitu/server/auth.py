"""Read a key from a request's headers and ask whose it is.

Not here: keys or their hashes; the verifier is given. Always true: with a verifier every path but
the open ones needs a key, those without a route included, so no spelling of a path gets round it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.refusal import Refusal
from insitu.server.paths import Access
from insitu.types import Caller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.server.options import Authenticate
    from insitu.server.paths import Place


def identify(
    headers: Sequence[tuple[bytes, bytes]], place: Place, authenticate: Authenticate | None
) -> Caller:
    """Answer who asks, or refuse: 401 for a stranger, 403 for a key without the admin scope."""
    if authenticate is None or place.access is Access.OPEN:
        return Caller()
    caller = authenticate(_presented(headers))
    if caller is None:
        raise Refusal(
            "A valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY.",
            status=401,
            kind="authentication_error",
            code="invalid_api_key",
        )
    if place.access is Access.ADMIN and not caller.is_admin:
        raise Refusal(
            "This path needs a key with the admin scope.",
            status=403,
            kind="permission_error",
            code="admin_scope_needed",
        )
    return caller


def _presented(headers: Sequence[tuple[bytes, bytes]]) -> str | None:
    """The one key of a request, as OpenAI's or as Anthropic's clients send it."""
    keys = {_bearer(value) for name, value in headers if name == b"authorization"}
    keys |= {value.decode("latin-1").strip() for name, value in headers if name == b"x-api-key"}
    return keys.pop() if len(keys) == 1 else None


def _bearer(value: bytes) -> str:
    scheme, _, key = value.decode("latin-1").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
