"""Files and batches: a batch whole, again after a restart, cancelled, of bad lines, of tenants."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from server.asking import BASE, CHAT, TEXT, ask, chat_body, error_of, text_body
from server.scripted_generator import Scripted
from server.test_run import running

from insitu.policy.gate import LimitGate
from insitu.policy.limits import Limits
from insitu.server.app import create_app
from insitu.server.batches import runner, upload
from insitu.server.batches.answers import BatchAnswer, BatchList, FileAnswer, FileDeleted, FileList
from insitu.server.batches.store import BatchFolderUnusable, Store
from insitu.server.options import ServerOptions
from insitu.types import Caller, Prepared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from insitu.types import Delta


@asynccontextmanager
async def client_of(
    folder: Path, generator: Scripted | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app that runs from here to the end."""
    app = create_app(generator or Scripted(), ServerOptions(batch_dir=folder, **options))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            yield client


def line(custom_id: str, body: dict[str, Any] | None = None, **fields: Any) -> str:
    value = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body or chat_body()}
    return json.dumps({**value, **fields})


async def upload_lines(client: httpx.AsyncClient, lines: list[str], **how: Any) -> str:
    files = {"file": ("../../in.jsonl", "\n".join(lines).encode())}
    answer = await client.post("/v1/files", data={"purpose": "batch"}, files=files, **how)
    assert answer.status_code == 200, answer.text
    FileAnswer.model_validate(answer.json())
    return str(answer.json()["id"])


async def begin(client: httpx.AsyncClient, lines: list[str], url: str = CHAT) -> dict[str, Any]:
    file_id = await upload_lines(client, lines)
    body = {"input_file_id": file_id, "endpoint": url, "completion_window": "24h"}
    answer = await client.post("/v1/batches", json={**body, "metadata": {"a": "b"}})
    assert answer.status_code == 200, answer.text
    return BatchAnswer.model_validate(answer.json()).model_dump()


async def until(client: httpx.AsyncClient, batch_id: str, *states: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            batch = (await client.get(f"/v1/batches/{batch_id}")).json()
            BatchAnswer.model_validate(batch)
            if batch["status"] in states:
                return dict(batch)
            await asyncio.sleep(0.01)


async def results(client: httpx.AsyncClient, file_id: str) -> dict[str, dict[str, Any]]:
    text = (await client.get(f"/v1/files/{file_id}/content")).text
    assert text.endswith("\n")
    found = [json.loads(one) for one in text.splitlines()]
    assert len({one["id"] for one in found}) == len(found)
    return {one["custom_id"]: one for one in found}


def test_a_batch_whole(tmp_path: Path) -> None:
    generator = Scripted()

    async def run() -> None:
        async with client_of(tmp_path / "kept", generator) as client:
            begun = await begin(client, [line(f"l{i}") for i in range(10)])
            assert begun["status"] == "validating"
            batch = await until(client, begun["id"], "completed")
            assert batch["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
            assert batch["metadata"] == {"a": "b"}
            assert batch["error_file_id"] is None
            found = await results(client, batch["output_file_id"])
            assert set(found) == {f"l{i}" for i in range(10)}
            response = found["l3"]["response"]
            assert found["l3"]["error"] is None
            assert response["status_code"] == 200
            assert response["body"]["choices"][0]["message"]["content"] == generator.text
            assert {one.priority for one in generator.asked} == {1000}
            listed = BatchList.model_validate((await client.get("/v1/batches")).json())
            assert [one.id for one in listed.data] == [batch["id"]]
            files = FileList.model_validate((await client.get("/v1/files?limit=1")).json())
            assert files.has_more
            ended = await client.post(f"/v1/batches/{batch['id']}/cancel")
            assert (ended.status_code, error_of(ended)["code"]) == (409, "batch_ended")
            deleted = await client.delete(f"/v1/files/{batch['input_file_id']}")
            FileDeleted.model_validate(deleted.json())
            gone = await client.get(f"/v1/files/{batch['input_file_id']}")
            assert gone.status_code == 404

    asyncio.run(run())
    assert {one.name for one in tmp_path.iterdir()} == {"kept"}


class Gated(Scripted):
    """Answers so many requests, then waits until it is let."""

    def __init__(self, num_free: int) -> None:
        super().__init__()
        self.num_free = num_free
        self.waits = asyncio.Event()

    async def _deltas(self, prepared: Prepared) -> AsyncIterator[Delta]:
        if self.num_free == 0:
            self.waits.set()
            await asyncio.Event().wait()
        self.num_free -= 1
        async for delta in super()._deltas(prepared):
            yield delta


async def until_counted(client: httpx.AsyncClient, batch_id: str, num_lines: int) -> None:
    async with asyncio.timeout(20):
        while True:
            counts = (await client.get(f"/v1/batches/{batch_id}")).json()["request_counts"]
            if counts["completed"] == num_lines:
                return
            await asyncio.sleep(0.01)


def test_a_restart_goes_on_where_the_first_run_was(tmp_path: Path) -> None:
    again = Scripted()

    async def run() -> None:
        async with client_of(tmp_path, Gated(5)) as client:
            begun = await begin(client, [line(f"l{i}") for i in range(12)])
            await until_counted(client, begun["id"], 5)
        (output,) = (
            one
            for one in tmp_path.rglob("file-*.jsonl")
            if one.stat().st_size > 500 and b"batch_req_" in one.read_bytes()
        )
        with output.open("ab") as file:  # torn by a crash
            file.write(b'{"id": "batch_req_')
        async with client_of(tmp_path, again) as client:
            batch = await until(client, begun["id"], "completed")
            assert batch["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
            assert len(await results(client, batch["output_file_id"])) == 12

    asyncio.run(run())
    assert len(again.asked) == 7


def test_a_cancelled_batch_keeps_what_is_done(tmp_path: Path) -> None:
    generator = Gated(3)

    async def run() -> None:
        async with client_of(tmp_path, generator) as client:
            begun = await begin(client, [line(f"l{i}") for i in range(12)])
            await until_counted(client, begun["id"], 3)
            in_use = await client.delete(f"/v1/files/{begun['input_file_id']}")
            assert (in_use.status_code, error_of(in_use)["code"]) == (409, "file_in_use")
            answer = await client.post(f"/v1/batches/{begun['id']}/cancel")
            assert answer.json()["status"] == "cancelling"
            batch = await until(client, begun["id"], "cancelled")
            assert batch["request_counts"]["completed"] == 3
            assert len(await results(client, batch["output_file_id"])) == 3
        assert generator.num_running == 0

    asyncio.run(run())


BAD_LINES = {
    "not JSON": ("{", "invalid_json", None),
    "unknown field": (line("x", extra=1), "unknown_parameter", "extra"),
    "other url": (line("x", url=TEXT), "invalid_value", "url"),
    "other method": (line("x", method="GET"), "invalid_value", "method"),
    "no id": (line(""), "invalid_value", "custom_id"),
    "the same id": (line("good"), "duplicate_custom_id", "custom_id"),
    "stream": (line("x", chat_body(stream=True)), "unsupported_parameter", "stream"),
    "priority": (line("x", chat_body(priority=0)), "unsupported_parameter", "priority"),
    "too long": (line("x", chat_body(user="x" * 2000)), "line_too_long", None),
}


def test_a_bad_line_is_an_error_line(tmp_path: Path) -> None:
    async def run() -> None:
        async with client_of(tmp_path, max_body_bytes=1000) as client:
            bad = [one for one, _, _ in BAD_LINES.values()]
            lines = [line("good"), *bad, "", line("wrong", chat_body(bogus=1)), line("last")]
            begun = await begin(client, lines)
            batch = await until(client, begun["id"], "completed")
            num_bad = len(bad) + 1
            assert batch["request_counts"] == {
                "total": num_bad + 2,
                "completed": 2,
                "failed": num_bad,
            }
            assert set(await results(client, batch["output_file_id"])) == {"good", "last"}
            text = (await client.get(f"/v1/files/{batch['error_file_id']}/content")).text
            found = [json.loads(one) for one in text.splitlines()]
            (judged,) = (one for one in found if one["response"] is not None)
            assert judged["custom_id"] == "wrong"
            assert judged["response"]["status_code"] == 400
            assert judged["response"]["body"]["error"]["param"] == "bogus"
            errors = {one["error"]["line"]: one["error"] for one in found if one["error"]}
            for number, (_, code, param) in enumerate(BAD_LINES.values(), 2):
                assert (errors[number]["code"], errors[number]["param"]) == (code, param)

    asyncio.run(run())


def test_a_file_without_lines_fails_its_batch(tmp_path: Path) -> None:
    async def run() -> None:
        async with client_of(tmp_path) as client:
            begun = await begin(client, ["", " "])
            batch = await until(client, begun["id"], "failed")
            assert batch["errors"]["data"][0]["code"] == "invalid_file"

    asyncio.run(run())


def test_what_is_late_has_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with client_of(tmp_path, Gated(2)) as client:
            begun = await begin(client, [line(f"l{i}") for i in range(4)])
            await until_counted(client, begun["id"], 2)
        monkeypatch.setattr("time.time", lambda: begun["expires_at"] + 1.0)
        async with client_of(tmp_path) as client:
            batch = await until(client, begun["id"], "expired")
            assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
            found = await results(client, batch["error_file_id"])
            assert {one["error"]["code"] for one in found.values()} == {"batch_expired"}

    asyncio.run(run())


def test_a_tenant_sees_its_own_only(tmp_path: Path) -> None:
    generator = Scripted()

    async def run() -> None:
        options = {"authenticate": lambda key: Caller(key) if key in {"ann", "bob"} else None}
        async with client_of(tmp_path, generator, **options) as client:
            client.headers["authorization"] = "Bearer ann"
            begun = await begin(client, [line("l")])
            batch = await until(client, begun["id"], "completed")
            output = batch["output_file_id"]
            client.headers["authorization"] = "Bearer bob"
            for method, path in (
                ("GET", f"/v1/files/{output}"),
                ("GET", f"/v1/files/{output}/content"),
                ("DELETE", f"/v1/files/{output}"),
                ("GET", f"/v1/batches/{batch['id']}"),
                ("POST", f"/v1/batches/{batch['id']}/cancel"),
            ):
                theirs = await client.request(method, path)
                other = path.replace(output[5:], "0" * 32).replace(batch["id"][6:], "0" * 32)
                none = await client.request(method, other)
                assert theirs.status_code == none.status_code == 404
                assert theirs.content == none.content
            assert (await client.get("/v1/files")).json()["data"] == []
            assert (await client.get("/v1/batches")).json()["data"] == []
            body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT}
            stolen = await client.post("/v1/batches", json={**body, "completion_window": "24h"})
            assert (stolen.status_code, error_of(stolen)["param"]) == (404, "input_file_id")

    asyncio.run(run())
    assert [one.tenant for one in generator.callers] == ["ann"]


def test_lines_count_against_limits_and_wait_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0

    async def pass_time(wait_s: float) -> None:
        nonlocal now_s
        now_s += wait_s

    async def run() -> None:
        gate = LimitGate(lambda _: Limits(requests_per_minute=2), clock=lambda: now_s)
        async with client_of(tmp_path, gate=gate) as client:
            begun = await begin(client, [line(f"l{i}") for i in range(5)])
            monkeypatch.setattr(runner, "pause", pass_time)
            batch = await until(client, begun["id"], "completed")
            assert batch["request_counts"] == {"total": 5, "completed": 5, "failed": 0}

    asyncio.run(run())
    assert now_s >= 60


def test_they_are_off_unless_a_folder_is_given() -> None:
    for method, path in (
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/file-1"),
        ("DELETE", "/v1/files/file-1"),
        ("GET", "/v1/files/file-1/content"),
        ("GET", "/v1/batches"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/batch_1"),
        ("POST", "/v1/batches/batch_1/cancel"),
    ):
        response = ask(method, path)
        assert (response.status_code, error_of(response)["code"]) == (404, "batches_off")
        assert "--batch-dir" in error_of(response)["message"]


def test_uploads_are_bounded_and_judged_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "MAX_FILE_BYTES", 1000)

    async def run() -> None:
        async with client_of(tmp_path) as client:
            post = client.post
            files = {"file": ("a", b"x" * 1000)}
            good = {"purpose": "batch"}
            assert (await post("/v1/files", data=good, files=files)).status_code == 200
            for data, sent, status, param in (
                (good, {"file": ("a", b"x" * 1001)}, 413, "file"),
                (good, {"file": ("a", b"x" * 200_000)}, 413, "file"),
                ({"purpose": "vision"}, files, 400, "purpose"),
                ({**good, "expires_after[seconds]": "9"}, files, 400, "expires_after[seconds]"),
                ({**good, "file": "text"}, {"other": ("a", b"x")}, 400, "other"),
            ):
                refused = await post("/v1/files", data=data, files=sent)
                assert (refused.status_code, error_of(refused)["param"]) == (status, param)
            assert (await post("/v1/files", json=good)).status_code == 415
            broken = {"content-type": "multipart/form-data; boundary=x"}
            answer = await post("/v1/files", content=b"--y\r\n", headers=broken)
            assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_form")
            assert len((await client.get("/v1/files")).json()["data"]) == 1
            assert len(list(tmp_path.rglob("*.jsonl"))) == 1

    asyncio.run(run())


def test_one_server_at_a_time_has_a_folder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(BatchFolderUnusable, match="another server"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_openais_client_runs_a_batch_against_a_live_server(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    lines = [line(f"l{i}", text_body(), url=TEXT) for i in range(3)]
    source.write_text("\n".join(lines))
    with running({}, batch_dir=str(tmp_path / "kept")) as one:
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="x", max_retries=0)
        with client:
            kept = client.files.create(file=source, purpose="batch")
            batch = client.batches.create(
                input_file_id=kept.id, endpoint="/v1/completions", completion_window="24h"
            )
            while batch.status not in {"completed", "failed"}:
                batch = client.batches.retrieve(batch.id)
            assert batch.status == "completed"
            assert batch.output_file_id is not None
            text = client.files.content(batch.output_file_id).text
            assert {json.loads(one)["custom_id"] for one in text.splitlines()} == {"l0", "l1", "l2"}
            assert [found.id for found in client.batches.list()] == [batch.id]
            assert len(list(client.files.list())) == 2
            assert client.files.delete(kept.id).deleted


def test_a_server_told_to_stop_ends_at_once_and_its_next_start_ends_the_batch(
    tmp_path: Path,
) -> None:
    files = {"file": ("in", "\n".join(line(f"l{i}") for i in range(24)).encode())}
    kept = str(tmp_path)
    with running({"gap_s": 0.01}, batch_dir=kept) as one, httpx.Client(base_url=one.url) as client:
        file_id = client.post("/v1/files", data={"purpose": "batch"}, files=files).json()["id"]
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        path = f"/v1/batches/{client.post('/v1/batches', json=body).json()['id']}"
        while not client.get(path).json()["request_counts"]["completed"]:
            pass
        one.process.send_signal(signal.SIGTERM)
        assert one.end(10) == 0
    with running({}, batch_dir=kept) as one, httpx.Client(base_url=one.url) as client:
        while (batch := client.get(path).json())["status"] != "completed":
            assert batch["status"] in {"in_progress", "finalizing"}
        text = client.get(f"/v1/files/{batch['output_file_id']}/content").text
        names = [json.loads(found)["custom_id"] for found in text.splitlines()]
        assert sorted(names) == sorted(f"l{i}" for i in range(24))
