"""Lists of files and batches: their queries are honoured or refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from server.asking import ask, error_of

from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
@pytest.mark.parametrize(
    ("query", "param", "code"),
    [
        ("limit=0", "limit", "invalid_value"),
        ("limit=x", "limit", "invalid_value"),
        ("limit=99999999999", "limit", "invalid_value"),
        ("limit=1&limit=2", "limit", "invalid_value"),
        ("after=other", "after", "invalid_value"),
        ("before=x", "before", "unknown_parameter"),
        ("limit=1&limits=1", "limits", "unknown_parameter"),
    ],
)
def test_a_query_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, path: str, query: str, param: str, code: str
) -> None:
    response = ask("GET", f"{path}?{query}", options=ServerOptions(batch_dir=tmp_path))
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == (param, code)
