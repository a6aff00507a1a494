"""Read a request's body and parse its JSON, trusting neither.

Not here: what the fields mean (``schema``). Always true: a value handed on is plain JSON without
duplicate keys or lone surrogates, nested at most ``MAX_DEPTH`` deep, of at most ``MAX_VALUES``
values and ``MAX_CONTAINERS`` objects and lists; what all large bodies take together is bounded.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.errors import ClientGone, clip

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from starlette.requests import Request

MAX_DEPTH = 64
# A small text can become large objects: these are counted before it is parsed.
MAX_VALUES = 2**18
MAX_CONTAINERS = 2**14
_MAX_MEMBERS = 4096
# Bodies above this are parsed off the event loop.
LARGE_BODY_BYTES = 64 * 2**10
# So many bodies of full length are held at once; of smaller ones accordingly more.
NUM_FULL_BODIES = 2
# An over-long body is read and thrown away for this long, so that its sender gets to the answer.
_DISCARD_S = 2.0
_DISCARDED_PARTS = 16  # and for so many times the limit

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class BodyBudget:
    """What large bodies may take at once; a connection's first ``LARGE_BODY_BYTES`` are free."""

    def __init__(self, max_body_bytes: int) -> None:
        self._left_bytes = NUM_FULL_BODIES * max_body_bytes
        self._turn = asyncio.Lock()

    def take(self, num_bytes: int) -> None:
        """Take bytes, or refuse for now; less than none gives them back."""
        if num_bytes > self._left_bytes:
            message = "Too many large bodies are being read at once. Try again later."
            raise Refusal(
                message,
                status=503,
                kind="server_error",
                code="too_many_large_bodies",
                retry_after_s=1,
            )
        self._left_bytes -= num_bytes

    def turn_of(self, account: BodyAccount | None) -> AbstractAsyncContextManager[Any]:
        """While a large body is turned into something else, no other is: copies are of one."""
        return nullcontext() if account is None or not account.is_large else self._turn


class BodyAccount:
    """What one body has taken, until it is closed."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._taken_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """The body has grown to this size."""
        wanted = max(0, size_bytes - LARGE_BODY_BYTES) - self._taken_bytes
        if wanted > 0:
            self._budget.take(wanted)
            self._taken_bytes += wanted

    @property
    def is_large(self) -> bool:
        """Whether it has taken anything."""
        return self._taken_bytes > 0

    def close(self) -> None:
        """Give back what was taken: nothing of the body is needed any more."""
        self._budget.take(-self._taken_bytes)
        self._taken_bytes = 0


async def read_body(
    request: Request, max_bytes: int, timeout_s: float, account: BodyAccount
) -> bytes:
    """Return the whole body, or refuse it: 413 too long, 408 too slow, 415 not JSON."""
    _check_content_type(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        if request.headers.get("expect", "").lower() != "100-continue":
            await _discard(request, _DISCARDED_PARTS * max_bytes)
        raise _too_long(max_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            more = True
            while more:
                part, more = await _receive(request)
                size += len(part)
                if size > max_bytes:
                    break
                account.hold(size)
                parts.append(part)
    except TimeoutError:
        message = f"The body did not arrive within {timeout_s:g} s."
        raise Refusal(message, status=408, code="body_timeout") from None
    if size > max_bytes:
        parts.clear()
        if more:
            await _discard(request, _DISCARDED_PARTS * max_bytes)
        raise _too_long(max_bytes)
    return b"".join(parts)


async def _receive(request: Request) -> tuple[bytes, bool]:
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


async def _discard(request: Request, max_bytes: int) -> None:
    size, more = 0, True
    try:
        async with asyncio.timeout(_DISCARD_S):
            while more and size <= max_bytes:
                part, more = await _receive(request)
                size += len(part)
    except TimeoutError:
        return


def _too_long(max_bytes: int) -> Refusal:
    message = f"The body is longer than the limit of {max_bytes} bytes."
    return Refusal(message, status=413, code="body_too_large")


def _check_content_type(request: Request) -> None:
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json":
        raise _wrong_type("The content type must be application/json.")
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name.lower() == "charset" and value.strip('" ').lower() not in {"utf-8", "utf8"}:
            raise _wrong_type("The charset must be utf-8.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise _wrong_type("Compressed bodies are not accepted.")


def _wrong_type(message: str) -> Refusal:
    return Refusal(message, status=415, code="unsupported_media_type")


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse one JSON object, stricter than the standard library."""
    if not body:
        raise _invalid("The body is empty.")
    if body.startswith(b"\xef\xbb\xbf"):
        raise _invalid("The body must not start with a byte order mark.")
    _check_size(body)
    try:
        text = body.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise _invalid(f"The body is not UTF-8 (byte {error.start}).") from None
    except RecursionError:
        raise _too_deep() from None
    except json.JSONDecodeError as error:
        raise _invalid(f"The body is not JSON: {error.msg} (character {error.pos}).") from None
    except ValueError:
        raise _invalid("The body holds a number with too many digits.") from None
    if not isinstance(value, dict):
        raise _invalid("The body must be a JSON object.")
    if _SURROGATE.search(body):
        _check_strings(value)
    return value


def _check_size(body: bytes) -> None:
    """Refuse what would become too many objects, or too deep ones: counted before any is made."""
    num_containers = body.count(b"[") + body.count(b"{")
    if num_containers <= MAX_DEPTH and num_containers + body.count(b",") <= MAX_VALUES:
        return
    # Without its strings the text has only signs that count.
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') > 2 * MAX_VALUES:
        raise _too_many(MAX_VALUES, "strings")
    outside = b"".join(without_escapes.split(b'"')[::2])
    num_containers = outside.count(b"[") + outside.count(b"{")
    if num_containers + outside.count(b",") > MAX_VALUES:
        raise _too_many(MAX_VALUES, "values")
    brackets = outside.translate(None, _NOT_BRACKETS)
    if max(num_containers, len(brackets) - num_containers) > MAX_CONTAINERS:
        raise _too_many(MAX_CONTAINERS, "objects and lists")
    depths = accumulate(1 if sign in b"[{" else -1 for sign in brackets)
    if max(depths, default=0) > MAX_DEPTH:
        raise _too_deep()


def _too_many(maximum: int, what: str) -> Refusal:
    return _invalid(f"The body holds more than {maximum} {what}.")


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(message, param=param, code="invalid_json")


def _too_deep() -> Refusal:
    return _invalid(f"The body is nested more than {MAX_DEPTH} deep.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MAX_MEMBERS:
        raise _invalid(f"An object has more than {_MAX_MEMBERS} members.")
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _invalid(f"The key {clip(key)!r} occurs twice in one object.", clip(key))
            seen.add(key)
    return value


def _constant(name: str) -> None:
    raise _invalid(f"{name} is not JSON.")


def _check_strings(root: Any) -> None:
    """Refuse lone surrogates, walking without recursion."""
    level: list[tuple[str, Any]] = [("", root)]
    while level:
        below: list[tuple[str, Any]] = []
        for path, value in level:
            if isinstance(value, str):
                _check_string(path, value)
            elif isinstance(value, dict):
                for key, member in value.items():
                    _check_string(path, key)
                    below.append((f"{path}.{clip(key)}" if path else clip(key), member))
            elif isinstance(value, list):
                below.extend(
                    (f"{path}[{index}]", item)
                    for index, item in enumerate(value)
                    if isinstance(item, str | dict | list)
                )
        level = below


def _check_string(path: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        message = f"A string in {clip(path) or 'a key'} holds an unpaired surrogate."
        raise _invalid(message, path or None) from None
