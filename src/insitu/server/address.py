"""The address a server listens on, and why it cannot.

Not here: listening (``run``). Always true: a test of an address leaves nothing bound.
"""

from __future__ import annotations

import os
import socket


class ListenError(Exception):
    """An address that cannot be listened on, and what to change."""


def require_free(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on now; called before anything slow is done."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as one:
                # As the server does it: what a connection left behind does not count.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
    except OSError as error:
        raise cannot_listen(host, port, error) from error


def cannot_listen(host: str, port: int, cause: OSError) -> ListenError:
    """What to say of it."""
    code = cause.errno or 0  # below 0 it is a resolver's, which has texts of its own
    reason = os.strerror(code) if code > 0 else cause.strerror or str(cause)
    return ListenError(
        f"cannot listen on {host} port {port}: {reason}; give another --host or --port."
    )
