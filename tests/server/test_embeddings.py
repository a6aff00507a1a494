"""Embeddings over HTTP, in OpenAI's words and Ollama's: inputs, vectors, failures, counts."""

from __future__ import annotations

import asyncio
import base64
import struct
from typing import TYPE_CHECKING, Any

import httpx
import ollama
import openai
import pytest
from live_server import live_server
from llm.conftest import random_path as random_path  # noqa: PLC0414 - a fixture
from server.asking import BASE, ask_all, error_of, post
from server.scripted_generator import CARD, Scripted, vector_of
from server.test_batches import begin, client_of, line, results, until
from server.test_door import sample, scrape

from insitu.llm.build import build
from insitu.policy.gate import LimitGate
from insitu.policy.limits import Limits
from insitu.refusal import RequestFailed
from insitu.server.app import create_app
from insitu.server.limits import MAX_INPUTS, MAX_NUMBERS
from insitu.server.options import ServerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

OPENAI, EMBED, EMBED_ONE = "/v1/embeddings", "/api/embed", "/api/embeddings"


def body(given: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": given, **fields}


def numbers(text: str, dimensions: int | None = None) -> list[float]:
    """As they are written: the float32 that is meant, in nine digits."""
    vector = vector_of(tuple(map(ord, text)), dimensions)
    return [float(f"{x:.9g}") for x in struct.unpack(f"<{len(vector) // 4}f", vector)]


def test_texts_and_ids_and_lists_of_either() -> None:
    forms = ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]]
    for form in forms:
        answer = post(OPENAI, body(form)).json()
        item = {"object": "embedding", "index": 0, "embedding": numbers("abc")}
        assert answer == {
            "object": "list",
            "data": [item],
            "model": "tiny",
            "usage": {"prompt_tokens": 3, "total_tokens": 3},
        }
    several = post(OPENAI, body(["a", "bcd", ""], user="me")).json()
    assert [one["index"] for one in several["data"]] == [0, 1, 2]
    assert [one["embedding"] for one in several["data"]] == [numbers(x) for x in ("a", "bcd", "")]
    assert several["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.parametrize(
    "wrong",
    [[], [[]], None, 5, ["a", 5], [1, "a"], [["a"]], [1.0], [True], [[1], "a"], ["a", None], {}],
)
def test_what_is_no_input_is_refused(wrong: Any) -> None:
    response = post(OPENAI, body(wrong))
    assert response.status_code == 400
    assert error_of(response)["param"].startswith("input")
    assert error_of(post(OPENAI, {"model": "tiny"}))["code"] == "missing_required_parameter"


def test_the_many_are_bounded_by_name() -> None:
    error = error_of(post(OPENAI, body(["a"] * (MAX_INPUTS + 1))))
    assert (error["param"], str(MAX_INPUTS) in error["message"]) == ("input", True)
    assert "element 1" in post(EMBED, body(["a", 1])).json()["error"]
    assert str(MAX_INPUTS) in post(EMBED, body(["a"] * (MAX_INPUTS + 1))).json()["error"]
    answer = post(OPENAI, body(["a"] * MAX_INPUTS, dimensions=1)).json()
    assert len(answer["data"]) == MAX_INPUTS


def test_numbers_of_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert CARD.embedding_size * MAX_INPUTS < MAX_NUMBERS
    monkeypatch.setattr("insitu.server.vectors.MAX_NUMBERS", 11)
    error = error_of(post(OPENAI, body(["a"] * 3)))
    assert (error["param"], "11" in error["message"]) == ("input", True)
    assert len(post(OPENAI, body(["a"] * 3, dimensions=3)).json()["data"]) == 3


def test_tokens_of_a_request_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("insitu.server.vectors.MAX_INPUT_TOKENS", 5)
    error = error_of(post(OPENAI, body(["ab", "cd", "ef"])))
    assert (error["param"], "5 tokens" in error["message"]) == ("input", True)
    assert post(OPENAI, body(["ab", "cd", "e"])).status_code == 200


def test_base64_is_the_same_numbers() -> None:
    answer = post(OPENAI, body("abc", encoding_format="base64")).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert raw == vector_of((97, 98, 99))
    plain = post(OPENAI, body("abc", encoding_format="float")).json()["data"][0]["embedding"]
    assert struct.pack("<4f", *plain) == raw


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"dimensions": 4.0}, "dimensions"),
        ({"truncate": 1}, "truncate"),
        ({"pooling": "mean"}, "pooling"),
        ({"stream": True}, "stream"),
        ({"model": "other"}, "model"),
    ],
)
def test_other_fields_and_values_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert error_of(post(OPENAI, body("a", **fields)))["param"] == param


def test_a_refusal_names_the_input() -> None:
    error = error_of(post(OPENAI, body([[97], [0x110000]])))
    assert (error["param"], error["code"]) == ("input[1]", "invalid_token_id")
    assert error_of(post(OPENAI, body([0x110000])))["param"] == "input"
    limited = ServerOptions(gate=LimitGate(lambda _: Limits(tokens_per_minute=5)))
    error = error_of(post(OPENAI, body(["abc", "abc"]), options=limited))
    assert (error["param"], error["code"]) == ("input[1]", "tokens_per_minute")


def test_a_failure_names_the_input_and_others_go_on() -> None:
    generator = Scripted(fail_after=3, error=RequestFailed("not finite"))
    failed, good = ask_all(
        [("POST", OPENAI, {"json": body(given)}) for given in (["a", "abc", "ab"], ["a", "ab"])],
        generator=generator,
    )
    assert failed.status_code == 500
    assert error_of(failed) == {
        "message": "input[1]: not finite",
        "type": "server_error",
        "param": "input[1]",
        "code": "request_failed",
    }
    assert len(good.json()["data"]) == 2
    assert generator.num_running == 0


def test_half_a_pair_is_refused_and_a_nul_cuts_nothing() -> None:
    for path, name in ((OPENAI, "input"), (EMBED, "input"), (EMBED_ONE, "prompt")):
        for half in (rb"\ud83d", rb"\ude00 tail", rb"\ude00\ud83d"):
            response = post(path, b'{"model": "tiny", "%s": "%s"}' % (name.encode(), half))
            assert response.status_code == 400
        response = post(path, b'{"model": "tiny", "%s": "\\ud83d\\ude00"}' % name.encode())
        assert response.status_code == 200
    answer = post(OPENAI, body("alpha\0omega")).json()
    assert answer["usage"]["prompt_tokens"] == 11


def test_what_is_told_of_an_input_is_told_with_its_name() -> None:
    generator = Scripted(warnings=("odd",))
    assert post(OPENAI, body(["a", "b"]), generator=generator).json()["warnings"] == [
        "input[0]: odd",
        "input[1]: odd",
    ]
    assert post(EMBED, body("a"), generator=generator).json()["warnings"] == ["input: odd"]
    lenient = {"x-insitu-lenient": "1"}
    left_out = post(OPENAI, body("a", nonsense=1), headers=lenient).json()["warnings"]
    assert left_out == ["Left out: Unknown field: nonsense."]


def test_ollamas_answers() -> None:
    generator = Scripted()
    asked = body(["a", "bc"], dimensions=2, truncate=True, keep_alive="5m", options={"num_ctx": 64})
    answer = post(EMBED, {**asked, "model": "tiny:latest"}, generator=generator).json()
    assert answer["embeddings"] == [numbers("a", 2), numbers("bc", 2)]
    assert (answer["model"], answer["prompt_eval_count"], answer["load_duration"]) == ("tiny", 3, 0)
    assert answer["total_duration"] > 0
    wanted = generator.asked[0].embedding
    assert wanted is not None
    assert (wanted.dimensions, wanted.max_tokens, wanted.is_cut) == (2, 64, True)
    absent = {"options": {"temperature": None, "num_gpu": None}, "truncate": None}
    one = post(EMBED_ONE, {"model": "tiny", "prompt": "ab", **absent}, generator=generator).json()
    assert one == {"embedding": numbers("ab"), "model": "tiny"}
    assert not generator.asked[-1].embedding.is_cut  # type: ignore[union-attr]


@pytest.fixture
def real(random_path: Path) -> Iterator[TextGenerator]:
    generator = build(random_path, name="tiny", threads=1)
    yield generator
    generator.close()


def test_clients_of_both_get_the_same_vectors(random_path: Path) -> None:
    texts = ["hello world", "a", "once upon a time"]
    made: list[list[Any]] = []
    with live_server(random_path) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
        packed = client.embeddings.create(model="default", input=texts)
        plain = client.embeddings.create(model="default", input=texts, encoding_format="float")
        made += [[one.embedding for one in answer.data] for answer in (packed, plain)]
        client.close()
        theirs = ollama.Client(host=server.url)
        made.append(list(theirs.embed("default", texts).embeddings))
        made.append([theirs.embeddings("default", text).embedding for text in texts])
        theirs._client.close()
    # From base64 come all digits of a float32, from a list nine.
    as_float32 = [[struct.pack(f"<{len(one)}f", *one) for one in way] for way in made]
    assert len(set(as_float32[0])) == 3
    assert all(way == as_float32[0] for way in as_float32)


async def _counted(generator: TextGenerator) -> tuple[str, list[int]]:
    app = create_app(generator, ServerOptions())
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
        answers = [
            await client.post(OPENAI, json=body(["a", "bc"])),
            await client.post(EMBED, json=body("abc")),
            await client.post(OPENAI, json=body("a", dimensions=9999)),
            await client.post(OPENAI, json=body("a", timeout=1e-9)),
        ]
        used = [answers[0].json()["usage"]["prompt_tokens"], answers[1].json()["prompt_eval_count"]]
        assert [one.status_code for one in answers] == [200, 200, 400, 504]
        return await scrape(client), used


def test_what_was_embedded_is_counted(real: TextGenerator) -> None:
    text, used = asyncio.run(_counted(real))
    ended = "insitu_requests_total"
    assert sample(text, ended, route=OPENAI, outcome="completed") == 1
    assert sample(text, ended, route=OPENAI, outcome="refused") == 1
    assert sample(text, ended, route=OPENAI, outcome="cancelled") == 1
    assert sample(text, ended, route=EMBED, outcome="completed") == 1
    assert sample(text, "insitu_prompt_tokens_total") == sum(used)
    assert sample(text, "insitu_generation_tokens_total") == 0
    assert sample(text, "gen_ai_server_time_to_first_token_seconds_count") == 0


def test_a_tenant_pays_for_what_was_embedded() -> None:
    gate = LimitGate(lambda _: Limits(tokens_per_minute=100), clock=lambda: 0.0)
    answers = ask_all(
        [("POST", OPENAI, {"json": body(given)}) for given in (["abc", "de"], [[0x110000]], "f")],
        options=ServerOptions(gate=gate),
    )
    left = [one.headers["x-ratelimit-remaining-tokens"] for one in answers]
    assert left == ["95", "95", "94"]


def test_a_batch_embeds(tmp_path: Path) -> None:
    generator = Scripted()

    async def run() -> None:
        async with client_of(tmp_path, generator) as client:
            url = "/v1/embeddings"
            texts = {"one": "abc", "wrong": [], "two": ["a", "bc"]}
            lines = [
                line(name, {"model": "tiny", "input": text}, url=url)
                for name, text in texts.items()
            ]
            batch = await until(client, (await begin(client, lines, url))["id"], "completed")
            assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
            found = await results(client, batch["output_file_id"])
            body = found["two"]["response"]["body"]
            assert [one["index"] for one in body["data"]] == [0, 1]
            assert body["usage"]["total_tokens"] == 3
            failed = (await results(client, batch["error_file_id"]))["wrong"]["response"]
            assert failed["body"]["error"]["param"] == "input"
            assert {one.priority for one in generator.asked} == {1000}

    asyncio.run(run())
