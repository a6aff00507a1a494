"""Keep other sites' pages away from a server that needs no key, and bound a request's head.

A page of any site can send requests to 127.0.0.1, and a name it controls can be made to resolve
there. So a private server answers only to names of its own, and to no foreign ``Origin``. Not here:
keys (``auth``). Always true: only origins the operator named get CORS headers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from insitu.server.options import ServerOptions

_MAX_HEADERS = 256


def values_of(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    """All values of a header."""
    return [value.decode("latin-1") for key, value in headers if key == name]


def check_head(headers: Sequence[tuple[bytes, bytes]], max_bytes: int) -> None:
    """Refuse a request whose headers are too many or too long."""
    size = sum(len(name) + len(value) + 4 for name, value in headers)
    if size > max_bytes or len(headers) > _MAX_HEADERS:
        message = f"The headers exceed {max_bytes} bytes or {_MAX_HEADERS} fields."
        raise Refusal(message, status=431, code="headers_too_large")


def host_name(value: str) -> str | None:
    """The name in a Host header or origin, without port, in lower case; None if it is neither."""
    try:
        parts = urlsplit(f"//{value}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or not parts.hostname:
        return None
    return parts.hostname


class Guard:
    """Decides from Host and Origin whether a request may come in."""

    def __init__(self, options: ServerOptions) -> None:
        self._is_private = options.is_private
        own = {"localhost", options.host, *options.allowed_hosts}
        if options.host == "localhost":
            own |= {"127.0.0.1", "::1"}
        self._hosts = {host_name(_bracket(name)) for name in own} - {None}
        self._origins = {origin.rstrip("/").lower() for origin in options.cors_origins}

    def check(self, headers: Sequence[tuple[bytes, bytes]], scheme: str) -> None:
        """Refuse a foreign Host or Origin of a private server."""
        if not self._is_private:
            return
        hosts = values_of(headers, b"host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._hosts:
            raise _forbidden("Host", "--allowed-host")
        own = f"{scheme}://{hosts[0]}".lower()
        for origin in values_of(headers, b"origin"):
            if origin.lower() != own and not self.allows(origin):
                raise _forbidden("Origin", "--cors-origin")

    def allows(self, origin: str) -> bool:
        """Whether the operator named this origin."""
        return origin.lower() in self._origins

    def cors_headers(
        self, headers: Sequence[tuple[bytes, bytes]], *, is_preflight: bool
    ) -> list[tuple[bytes, bytes]]:
        """What lets a page of a named origin read the answer; nothing for any other."""
        if not self._origins:
            return []
        answer = [(b"vary", b"origin")]
        origins = values_of(headers, b"origin")
        if len(origins) != 1 or not self.allows(origins[0]):
            return answer
        answer.append((b"access-control-allow-origin", origins[0].encode("latin-1")))
        if is_preflight:
            wanted = values_of(headers, b"access-control-request-headers")
            allowed = wanted[0].encode("latin-1") if wanted else b"authorization, content-type"
            answer += [
                (b"access-control-allow-methods", b"GET, POST, DELETE"),
                (b"access-control-allow-headers", allowed),
                (b"access-control-max-age", b"600"),
            ]
        else:
            answer.append((b"access-control-expose-headers", b"x-request-id, retry-after"))
        return answer


def _bracket(name: str) -> str:
    return f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name


def _forbidden(header: str, flag: str) -> Refusal:
    message = f"This server does not answer to this {header} header; {flag} would allow it."
    code = f"forbidden_{header.lower()}"
    return Refusal(message, status=403, kind="permission_error", code=code)
