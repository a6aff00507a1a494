"""Answers of files and batches as models, for the OpenAPI document and the tests."""

from __future__ import annotations

from typing import Literal

from insitu.server.schema_answers import Answer


class FileAnswer(Answer):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]


class FileDeleted(Answer):
    """A file that is no more."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class FileList(Answer):
    """A page of files."""

    object: Literal["list"]
    data: list[FileAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchFault(Answer):
    """Why a batch failed as a whole."""

    code: str | None
    message: str
    param: str | None
    line: int | None


class BatchFaults(Answer):
    """A list of reasons."""

    object: Literal["list"]
    data: list[BatchFault]


class RequestCounts(Answer):
    """How many lines there are, and how many are done."""

    total: int
    completed: int
    failed: int


class BatchAnswer(Answer):
    """A batch."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "in_progress",
        "finalizing",
        "completed",
        "failed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(Answer):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool
