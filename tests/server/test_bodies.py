"""What a body may cost: counted before it is parsed, and together with all others."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from server.asking import TEXT, error_of, post, text_body
from server.scripted_generator import Scripted

from insitu.refusal import Refusal
from insitu.server.app import create_app
from insitu.server.body import MAX_CONTAINERS, MAX_VALUES, parse_json
from insitu.server.options import ServerOptions


def refused(body: str) -> str:
    with pytest.raises(Refusal) as caught:
        parse_json(body.encode())
    assert caught.value.code == "invalid_json"
    return caught.value.message


def test_as_much_as_is_allowed() -> None:
    ids = parse_json(b'{"a":[' + b"1," * (MAX_VALUES - 2) + b"1]}")
    assert len(ids["a"]) == MAX_VALUES - 1
    lists = parse_json(b'{"a":[' + b"[]," * (MAX_CONTAINERS - 3) + b"[]]}")
    assert len(lists["a"]) == MAX_CONTAINERS - 2
    depth = 62
    assert parse_json(b'{"a":[' + b"[" * depth + b"]" * depth + b"]}")


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ('{"a":[' + "1," * MAX_VALUES + "1]}", "values"),
        ('{"a":[' + '"",' * (MAX_VALUES + 1) + '""]}', "strings"),
        ('{"a":[' + "[]," * MAX_CONTAINERS + "[]]}", "objects and lists"),
        ('{"a":[' + "{}," * MAX_CONTAINERS + "{}]}", "objects and lists"),
        ('{"a":' + "[" * 64 + "]" * 64 + "}", "nested"),
        ('{"a":' * 65 + "1" + "}" * 65, "nested"),
    ],
)
def test_too_much_is_refused_before_it_is_made(body: str, what: str) -> None:
    assert what in refused(body)


@pytest.mark.parametrize("text", ["[{,", '[\\"{,', "\\\\[{,", '\\\\\\"[', "]}", '\\"'])
def test_signs_within_strings_are_text(text: str) -> None:
    value = {"a": text.replace("\\", "\\\\") * MAX_VALUES, "b": [[]] * 70}
    assert parse_json(json.dumps(value).encode()) == value


def test_large_bodies_share_a_budget_and_give_it_back() -> None:
    limit = 200_000

    async def run() -> tuple[list[int], int]:
        app = create_app(Scripted(), ServerOptions(max_body_bytes=limit))
        transport = httpx.ASGITransport(app=app)
        go = asyncio.Event()
        body = json.dumps(text_body(user="x" * (limit - 100))).encode()

        async def slowly() -> Any:
            yield body[:-1]
            await go.wait()
            yield body[-1:]

        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            headers = {"content-type": "application/json"}
            asked = [
                asyncio.create_task(client.post(TEXT, content=slowly(), headers=headers))
                for _ in range(8)
            ]
            await asyncio.sleep(0.3)
            go.set()
            answers = await asyncio.gather(*asked)
            busy = [one for one in answers if one.status_code == 503]
            assert all(error_of(one)["code"] == "too_many_large_bodies" for one in busy)
            assert all(one.headers["retry-after"] == "1" for one in busy)
            after = await client.post(TEXT, content=body, headers=headers)
            return [one.status_code for one in answers], after.status_code

    statuses, after = asyncio.run(run())
    assert set(statuses) == {200, 503}
    assert after == 200


def test_small_bodies_are_never_counted() -> None:
    assert post(TEXT, text_body(user="x" * 60_000)).status_code == 200
