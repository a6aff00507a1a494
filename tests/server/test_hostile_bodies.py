"""Bodies that are no JSON, hold half a character or point elsewhere: refused, nothing asked."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from server.asking import CHAT, TEXT, ask_all, error_of, post
from server.scripted_generator import Scripted

BODIES: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"{:", "not JSON"),
    (b"[]", "object"),
    (b"null", "object"),
    (b"5", "object"),
    (b'{"a":1}{', "not JSON"),
    (b'{"a":1,}', "not JSON"),
    (b'{"model":"a","model":"b"}', "twice"),
    (b'{"x":{"k":1,"k":2}}', "twice"),
    (b"\xef\xbb\xbf{}", "byte order mark"),
    ('{"a":1}'.encode("utf-16"), "UTF-8"),
    ('{"a":1}'.encode("utf-16-le"), "not JSON"),
    (b'{"a":"\xff"}', "UTF-8"),
    (b'{"a":NaN}', "NaN"),
    (b'{"a":-Infinity}', "Infinity"),
    (b'{"a":' + b"9" * 5000 + b"}", "digits"),
    (b'{"a":' + b"[" * 1_000, "nested"),
    (b'{"a":' + b"[" * 100_000, "objects and lists"),
    (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested"),
    (b'{"a":"\x01"}', "not JSON"),
]
POSTS = [CHAT, TEXT, "/v1/tokenize", "/v1/detokenize", "/v1/embeddings"]


@pytest.mark.parametrize("path", POSTS)
def test_what_is_not_strict_json_is_refused(path: str) -> None:
    headers = {"content-type": "application/json"}
    asked = [("POST", path, {"content": body, "headers": headers}) for body, _ in BODIES]
    for (body, word), response in zip(BODIES, ask_all(asked), strict=True):
        assert response.status_code == 400, body[:40]
        assert word in error_of(response)["message"], body[:40]


HALVES = ['"cut \\ud83d"', '"\\ude00 tail"', '"\\ude00\\ud83d"']


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("bad", HALVES)
def test_lone_surrogates_are_refused_everywhere(path: str, bad: str) -> None:
    for field in ("model", "prompt", "stop", "user", "messages", "tools"):
        value = f'[{{"role":"user","content":{bad}}}]' if field == "messages" else bad
        response = post(path, f'{{"{field}":{value}}}'.encode())
        assert response.status_code == 400
        assert error_of(response)["param"].startswith(field)
    keyed = post(path, f'{{"metadata":{{{bad}:"x"}}}}'.encode())
    assert keyed.status_code == 400
    error_of(keyed)


TOOL = '{"type":"function","function":{"name":%s,"parameters":{"enum":[%s]}}}'
OTHER_POSTS = [
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
]


@pytest.mark.parametrize("path", [*POSTS, *OTHER_POSTS])
@pytest.mark.parametrize("bad", HALVES)
def test_half_a_character_is_refused_wherever_it_stands(path: str, bad: str) -> None:
    whole = '"x"'
    for body in (
        f'{{"model":{bad}}}',
        f'{{"messages":[{{"role":"user","content":{bad}}}]}}',
        f'{{"tools":[{TOOL % (bad, whole)}]}}',
        f'{{"tools":[{TOOL % (whole, bad)}]}}',
        f'{{"stop":[{bad}]}}',
        f"{{{bad}:1}}",
    ):
        response = post(path, body.encode())
        assert response.status_code == 400
        json.loads(response.content.decode("utf-8"))


def test_a_whole_surrogate_pair_is_a_character() -> None:
    generator = Scripted()
    body = b'{"model":"tiny","prompt":"\\ud83d\\ude00"}'
    assert post(TEXT, body, generator=generator).status_code == 200
    assert generator.asked[0].prompt == "\U0001f600"


def urls_of(port: int) -> list[str]:
    """Addresses that lead to this machine, to its files, or nowhere at all."""
    return [
        *(f"http://{host}:{port}/x.png" for host in ("127.0.0.1", "[::1]", "0", "localhost")),
        *(f"http://{host}:{port}/x.png" for host in ("2130706433", "017700000001", "0x7f.1")),
        f"http://127.0.0.1:{port}\\@ok.example/",
        f"http://ok.example@127.0.0.1:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:1/closed",
        "file:///etc/hostname",
        "ftp://127.0.0.1/x",
        "data:image/png;base64," + "A" * 200_000,
    ]


def with_image(path: str, url: str) -> dict[str, Any]:
    """A body of a path that shows a picture."""
    part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
    if path == "/v1/responses":
        part = {"type": "input_image", "image_url": url}
        return {"model": "tiny", "input": [{"role": "user", "content": [part]}]}
    if path == "/v1/messages":
        part = {"type": "image", "source": {"type": "url", "url": url}}
    if path == "/api/chat":
        return {"model": "tiny", "messages": [{"role": "user", "content": "x", "images": [url]}]}
    return {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/api/chat"])
def test_no_address_in_a_request_is_asked(path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        answers = [post(path, with_image(path, url)) for url in urls_of(listener.getsockname()[1])]
        # Nothing came, and an answer does not tell one address from another.
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert {one.status_code for one in answers} == {400}
    errors = [one.json()["error"] if path != "/api/chat" else one.json() for one in answers]
    (param,) = {one["param"] for one in errors}
    assert param.endswith(("content[0].type", "[0].images")), errors[0]
    assert len({one.get("message", one.get("error")) for one in errors}) == 1
