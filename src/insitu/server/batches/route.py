"""/v1/files and /v1/batches: what a tenant keeps and has run.

Not here: running (``runner``). Always true: without a folder for them every one of these paths is
refused in the same words, and an id of another tenant's is answered like one that never was.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.endpoints import HTTPEndpoint
from starlette.responses import FileResponse

from insitu.refusal import Refusal
from insitu.server.batches.batch import Batch
from insitu.server.batches.limits import MAX_FILES, MAX_OPEN_BATCHES
from insitu.server.batches.upload import take_file
from insitu.server.errors import JSONAnswer, clip
from insitu.server.record import record_of
from insitu.server.service import read_wire, service_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from insitu.server.batches.runner import Batches as Runner
    from insitu.server.batches.store import Room

_PAGES = {"file-": 10_000, "batch_": 100}  # longest
_PAGE = {"file-": 10_000, "batch_": 20}  # where nothing is said


def _runner_and_room(request: Request) -> tuple[Runner, Room]:
    """What runs batches, and what the caller keeps."""
    runner: Runner | None = request.app.state.batches
    if runner is None:
        message = (
            "Files and batches are off, because they store prompts; --batch-dir DIR of "
            "`insitu serve` turns them on."
        )
        raise Refusal(message, status=404, code="batches_off")
    return runner, runner.store.room_of(record_of(request.scope).caller.tenant)


def _file(request: Request, room: Room) -> dict[str, Any]:
    file_id = request.path_params["file_id"]
    state = room.load(file_id) if file_id.startswith("file-") else None
    if state is None:
        raise Refusal("There is no such file.", status=404, param="file_id", code="not_found")
    return state


def _batch(request: Request, runner: Runner, room: Room) -> Batch:
    batch = runner.find(request.path_params["batch_id"], room)
    if batch is None:
        raise Refusal("There is no such batch.", status=404, param="batch_id", code="not_found")
    return batch


def _batch_answer(request: Request, batch: Batch) -> Response:
    return JSONAnswer(batch.wire(service_of(request).generator.describe().name))


def _page(request: Request, ids: list[str], prefix: str) -> tuple[list[str], bool]:
    """The ids a list's query asks for, and whether there are more."""
    query = request.query_params
    allowed = {"limit", "after"} | ({"order", "purpose"} if prefix == "file-" else set())
    for name in query:
        shown = clip(name)
        if name not in allowed:
            raise Refusal(f"Unknown field: {shown}.", param=shown, code="unknown_parameter")
        if len(query.getlist(name)) > 1:
            raise Refusal(f"{shown} is given twice.", param=shown, code="invalid_value")
    text = query.get("limit", str(_PAGE[prefix]))
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:9]) <= _PAGES[prefix]):
        message = f"limit must be 1 to {_PAGES[prefix]}."
        raise Refusal(message, param="limit", code="invalid_value")
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise Refusal("order must be asc or desc.", param="order", code="invalid_value")
    ids = sorted(ids, reverse=order == "desc")
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise Refusal("after must be an id of the list.", param="after", code="invalid_value")
        ids = ids[ids.index(after) + 1 :]
    return ids[: int(text)], len(ids) > int(text)


def _list_answer(data: list[dict[str, Any]], *, has_more: bool) -> Response:
    ends = {
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return JSONAnswer({"object": "list", "data": data, **ends, "has_more": has_more})


class Files(HTTPEndpoint):
    """A tenant's files."""

    async def get(self, request: Request) -> Response:
        """List them, the newest first."""
        _, room = _runner_and_room(request)
        states = await asyncio.to_thread(_all_files, room)
        if (purpose := request.query_params.get("purpose")) is not None:
            states = {one: state for one, state in states.items() if state["purpose"] == purpose}
        ids, has_more = _page(request, list(states), "file-")
        return _list_answer([states[one] for one in ids], has_more=has_more)

    async def post(self, request: Request) -> Response:
        """Keep one more."""
        _, room = _runner_and_room(request)
        if len(room.ids("file-")) >= MAX_FILES:
            message = f"There are {MAX_FILES} files, which is the most: delete some."
            raise Refusal(message, code="too_many_files")
        return JSONAnswer(await take_file(request, room))


def _all_files(room: Room) -> dict[str, dict[str, Any]]:
    found = ((one, room.load(one)) for one in room.ids("file-"))
    return {one: state for one, state in found if state is not None}


class File(HTTPEndpoint):
    """One file."""

    async def get(self, request: Request) -> Response:
        """What it is."""
        _, room = _runner_and_room(request)
        return JSONAnswer(_file(request, room))

    async def delete(self, request: Request) -> Response:
        """Forget it, unless a batch reads it."""
        runner, room = _runner_and_room(request)
        file_id = _file(request, room)["id"]
        if any(one.input_file_id == file_id for one in runner.open_batches(room)):
            message = "A batch that has not ended reads this file."
            raise Refusal(message, status=409, param="file_id", code="file_in_use")
        room.delete(file_id)
        return JSONAnswer({"id": file_id, "object": "file", "deleted": True})


class Content(HTTPEndpoint):
    """One file's bytes."""

    async def get(self, request: Request) -> Response:
        """Send them."""
        _, room = _runner_and_room(request)
        path = room.content_path(_file(request, room)["id"])
        return FileResponse(path, media_type="application/jsonl")


class Batches(HTTPEndpoint):
    """A tenant's batches."""

    async def get(self, request: Request) -> Response:
        """List them, the newest first."""
        runner, room = _runner_and_room(request)
        ids, has_more = _page(request, room.ids("batch_"), "batch_")
        found = [batch for one in ids if (batch := runner.find(one, room)) is not None]
        model = service_of(request).generator.describe().name
        return _list_answer([one.wire(model) for one in found], has_more=has_more)

    async def post(self, request: Request) -> Response:
        """Begin one."""
        from insitu.server.batches.schema import CreateBatch  # noqa: PLC0415 - slow to import

        runner, room = _runner_and_room(request)
        wire = await read_wire(request, CreateBatch)
        file_id = wire.input_file_id
        state = room.load(file_id) if file_id.startswith("file-") else None
        if state is None:
            message = "There is no such file."
            raise Refusal(message, status=404, param="input_file_id", code="not_found")
        if state["purpose"] != "batch":
            message = "input_file_id must be of a file uploaded for a batch."
            raise Refusal(message, param="input_file_id", code="invalid_value")
        if len(runner.open_batches(room)) >= MAX_OPEN_BATCHES:
            message = f"{MAX_OPEN_BATCHES} batches have not ended, which is the most."
            kind = "rate_limit_error"
            raise Refusal(message, status=429, kind=kind, code="too_many_batches", retry_after_s=60)
        batch = Batch(file_id, wire.endpoint, wire.completion_window, wire.metadata)
        runner.add(batch, room)
        return _batch_answer(request, batch)


class OneBatch(HTTPEndpoint):
    """One batch."""

    async def get(self, request: Request) -> Response:
        """How far it is."""
        runner, room = _runner_and_room(request)
        return _batch_answer(request, _batch(request, runner, room))


class Cancel(HTTPEndpoint):
    """The end of a batch before its time."""

    async def post(self, request: Request) -> Response:
        """End it; what is done stays."""
        runner, room = _runner_and_room(request)
        batch = _batch(request, runner, room)
        if batch.has_ended:
            message = f"The batch has ended: it is {batch.status}."
            raise Refusal(message, status=409, param="batch_id", code="batch_ended")
        runner.cancel(batch)
        return _batch_answer(request, batch)
