"""Lines of a batch: what is asked, checked one by one, and what came of each, on disk at once.

Not here: when a line runs (``runner``). Always true: a line's result is in the output or the error
file, once, and on disk before it is counted; a line torn by a crash is cut off and run again.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal
from insitu.server.batches.limits import PRIORITY
from insitu.server.batches.store import open_private
from insitu.server.body import parse_json
from insitu.server.errors import clip, error_body, json_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.server.batches.batch import Batch
    from insitu.server.batches.store import Room

_MAX_CUSTOM_ID = 512
_FIELDS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an input file; ``number`` counts from 1."""

    number: int
    raw: bytes


def read_lines(path: Path, max_bytes: int) -> Iterator[Line]:
    """All lines that are not blank; of one that is too long only so much that it shows."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_bytes + 1):
            number += 1
            rest = raw
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(2**20)
            if raw.strip():
                yield Line(number, raw)


@dataclass(slots=True)
class Asked:
    """What a line asks for."""

    custom_id: str
    body: bytes


def custom_id_of(line: Line) -> str | None:
    """The client's name for a line, where it has one that can be told."""
    try:
        value = parse_json(line.raw).get("custom_id")
    except Refusal:
        return None
    return value if isinstance(value, str) and len(value) <= _MAX_CUSTOM_ID else None


def check_line(line: Line, batch: Batch, max_bytes: int) -> Asked:
    """Take a line apart, or refuse it; what its body says is for the endpoint to judge."""
    if len(line.raw) > max_bytes:
        raise Refusal(f"The line is longer than {max_bytes} bytes.", code="line_too_long")
    value = parse_json(line.raw)
    if unknown := sorted(set(value) - _FIELDS):
        name = clip(unknown[0])
        raise Refusal(f"Unknown field: {name}.", param=name, code="unknown_parameter")
    custom_id, body = value.get("custom_id"), value.get("body")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_CUSTOM_ID:
        wanted = f"must be a text of 1 to {_MAX_CUSTOM_ID} characters"
        raise _invalid("custom_id", wanted)
    if value.get("method") != "POST":
        raise _invalid("method", "must be POST")
    if value.get("url") != batch.endpoint:
        raise _invalid("url", f"must be the batch's endpoint, {batch.endpoint}")
    if not isinstance(body, dict):
        raise _invalid("body", "must be an object")
    if body.get("stream"):
        raise _invalid("stream", "must be false or absent in a batch", "unsupported_parameter")
    if body.get("priority") is not None:
        wanted = "is not taken in a batch, whose lines run behind all other requests"
        raise _invalid("priority", wanted, "unsupported_parameter")
    return Asked(custom_id, json_bytes({**body, "priority": PRIORITY}))


def _invalid(param: str, wanted: str, code: str = "invalid_value") -> Refusal:
    return Refusal(f"{param} {wanted}.", param=param, code=code)


def result_id(batch: Batch, number: int) -> str:
    """The id of a line's result, the same whenever it is run."""
    return f"batch_req_{batch.id.removeprefix('batch_')}_{number}"


def answered(batch: Batch, line: Line, custom_id: str, status: int, body: Any) -> dict[str, Any]:
    """The result of a line that the endpoint answered, well or not."""
    named = result_id(batch, line.number)
    response = {"status_code": status, "request_id": named, "body": body}
    return {"id": named, "custom_id": custom_id, "response": response, "error": None}


def refused(batch: Batch, line: Line, refusal: Refusal) -> dict[str, Any]:
    """The result of a line that did not get as far as the endpoint."""
    error = error_body(refusal)["error"]
    told = {name: error[name] for name in ("code", "message", "param")}
    return {
        "id": result_id(batch, line.number),
        "custom_id": custom_id_of(line),
        "response": None,
        "error": {**told, "line": line.number},
    }


class Results:
    """The output and the error file of a batch while it runs."""

    def __init__(self, batch: Batch, room: Room) -> None:
        """Open both, and find what is done already."""
        self._batch, self._room = batch, room
        self._lock = threading.Lock()
        self.done: set[str] = set()
        self._output, outputs = _reopened(room.content_path(batch.output_id))
        self._errors, errors = _reopened(room.content_path(batch.error_id))
        self.done = outputs | errors
        batch.num_completed, batch.num_failed = len(outputs), len(errors)

    def write(self, result: dict[str, Any]) -> None:
        """Put a result on disk, then count it; after ``close`` it is dropped."""
        response = result["response"]
        is_good = response is not None and response["status_code"] < 300
        with self._lock:
            file = self._output if is_good else self._errors
            if file.closed or result["id"] in self.done:
                return
            file.write(json_bytes(result) + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self.done.add(result["id"])
            if is_good:
                self._batch.num_completed += 1
            else:
                self._batch.num_failed += 1

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self._output.close()
            self._errors.close()

    def publish(self) -> None:
        """Make files of what there is."""
        batch = self._batch
        if batch.num_completed:
            batch.output_file_id = batch.output_id
        if batch.num_failed:
            batch.error_file_id = batch.error_id
        for file_id, is_there, name in (
            (batch.output_id, batch.num_completed, "output"),
            (batch.error_id, batch.num_failed, "error"),
        ):
            if is_there:
                save_file(self._room, file_id, f"{batch.id}_{name}.jsonl", "batch_output")
            else:
                self._room.delete(file_id)


def save_file(room: Room, file_id: str, name: str, purpose: str) -> dict[str, Any]:
    """Note a file whose bytes are on disk; from now on it is there. ``name`` is only shown."""
    found = room.content_path(file_id).stat()
    state = {
        "id": file_id,
        "object": "file",
        "bytes": found.st_size,
        "created_at": int(found.st_mtime),
        "filename": name,
        "purpose": purpose,
        "status": "processed",
    }
    room.save(file_id, state)
    return state


def _reopened(path: Path) -> tuple[Any, set[str]]:
    """A file to append to, without a torn last line, and the ids of the results in it."""
    file = open_private(path, os.O_RDWR | os.O_CREAT)
    done, whole = set(), 0
    for raw in file:
        if not raw.endswith(b"\n"):
            break
        done.add(json.loads(raw)["id"])
        whole += len(raw)
    file.seek(whole)
    file.truncate()
    return file, done
