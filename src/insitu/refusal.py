"""Why a request is not served: refused before it began, or failed after.

Always true: both carry what an answer over HTTP needs.
"""

from __future__ import annotations


class Refusal(Exception):
    """A request that will not be served, with the reason a caller can act on.

    ``status`` is the HTTP status it maps to, ``kind`` the error type of OpenAI's API, ``param`` the
    path of the field at fault, ``code`` a stable machine-readable word.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.kind = kind
        self.retry_after_s = retry_after_s


class RequestFailed(Exception):
    """A request that was admitted and then failed inside; the server and other requests live on.

    ``code``, ``status`` and ``param`` are as in ``Refusal``.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "request_failed",
        status: int = 500,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


def request_timed_out(timeout_s: float) -> RequestFailed:
    """The failure of a request that took longer than it may."""
    message = f"The request took longer than {timeout_s:g} s."
    return RequestFailed(message, code="request_timeout", status=504)
