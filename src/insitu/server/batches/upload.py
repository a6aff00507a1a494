"""Take in an uploaded file: multipart/form-data, bounded, its bytes on disk under an id of ours.

Not here: where files are (``store``). Always true: the client's file name is shown again and never
used; what is not wanted is refused by name, and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from typing import TYPE_CHECKING, Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from insitu.refusal import Refusal
from insitu.server.batches.limits import MAX_FILE_BYTES
from insitu.server.batches.lines import save_file
from insitu.server.batches.store import new_id, open_private
from insitu.server.errors import ClientGone, clip
from insitu.server.service import service_of

if TYPE_CHECKING:
    from starlette.types import Message

    from insitu.server.batches.store import Room

_FORM_BYTES = 2**16  # of boundaries, heads and small fields
_MAX_FIELDS = 16
_PURPOSE = "batch"


async def take_file(request: Request, room: Room) -> dict[str, Any]:
    """Read a form and keep its file."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        message = "The content type must be multipart/form-data."
        raise Refusal(message, status=415, code="unsupported_media_type")
    bounded = Request(request.scope, _bounded(request))
    try:
        async with bounded.form(max_files=1, max_fields=_MAX_FIELDS) as form:
            uploaded = _wanted(form.multi_items())
            return await asyncio.to_thread(_keep, uploaded, room)
    except HTTPException as error:
        message = f"The form cannot be read: {clip(error.detail)}"
        raise Refusal(message, code="invalid_form") from None


def _bounded(request: Request) -> Any:
    """Messages of a body, refused when they are too much or too slow."""
    size = 0
    timeout_s = service_of(request).options.body_timeout_s

    async def receive() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout(timeout_s):
                message = await request.receive()
        except TimeoutError:
            text = f"No part of the body arrived within {timeout_s:g} s."
            raise Refusal(text, status=408, code="body_timeout") from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        size += len(message.get("body", b""))
        if size > MAX_FILE_BYTES + _FORM_BYTES:
            raise _too_large()
        return message

    return receive


def _wanted(items: list[tuple[str, Any]]) -> UploadFile:
    names = [name for name, _ in items]
    for name in names:
        if name not in {"purpose", "file"}:
            message = f"{clip(name)} is not supported here."
            raise Refusal(message, param=clip(name), code="unsupported_parameter")
    fields = dict(items)
    if len(fields) != len(names):
        raise Refusal("A field is there twice.", code="invalid_form")
    if fields.get("purpose") != _PURPOSE:
        raise Refusal(f"purpose must be {_PURPOSE}.", param="purpose", code="invalid_value")
    uploaded = fields.get("file")
    if not isinstance(uploaded, UploadFile):
        raise Refusal("file must be a file.", param="file", code="missing_required_parameter")
    if (uploaded.size or 0) > MAX_FILE_BYTES:
        raise _too_large()
    return uploaded


def _too_large() -> Refusal:
    message = f"The file is longer than the limit of {MAX_FILE_BYTES} bytes."
    return Refusal(message, status=413, param="file", code="file_too_large")


def _keep(uploaded: UploadFile, room: Room) -> dict[str, Any]:
    file_id = new_id("file-")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open_private(room.content_path(file_id), flags) as file:
            shutil.copyfileobj(uploaded.file, file)
            file.flush()
            os.fsync(file.fileno())
        return save_file(room, file_id, clip(uploaded.filename or "file.jsonl"), _PURPOSE)
    except BaseException:
        room.delete(file_id)
        raise
