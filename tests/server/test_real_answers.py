"""The server over real engine and codec: a dictated text arrives whole by every way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from server.asking import TEXT, error_of, events
from server.dictated import ask_together, chat, dictated, whole_and_streamed
from tiny_model import write_gguf

from insitu.llm.build import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

ROCKET = [b"\xf0", b"\x9f", b"\x9a", b"\x80"]


def bytes_of(entries: list[dict[str, Any]]) -> list[list[int]]:
    return [one["bytes"] for one in entries]


def test_a_character_of_four_tokens_has_the_bytes_of_each(tmp_path: Path) -> None:
    with dictated(tmp_path, [*ROCKET, b"ok"]) as generator:
        said = whole_and_streamed(generator, logprobs=True, top_logprobs=2)
    entries = said["logprobs"]
    assert said["content"] == "\U0001f680ok"
    assert bytes_of(entries) == [[0xF0], [0x9F], [0x9A], [0x80], [*b"ok"], []]
    assert len(entries) == said["usage"]["completion_tokens"] == 6
    for one in entries[:-1]:
        assert one["top_logprobs"][0]["bytes"] == one["bytes"]
        assert all(len(top["bytes"]) > 0 for top in one["top_logprobs"])


SPLIT = [
    *ROCKET[:1], b"\x9f\x98", b"\x80", b"!", b"\xd0", b"\x9f\xd1", b"\x80\xd0\xb8", b" ",
    b"\xf0\x9f", b"\x91", b"\xa9", b"\xe2", b"\x80\x8d", b"\xf0\x9f\x92", b"\xbb",
]  # fmt: skip


@pytest.mark.parametrize("stop", [None, "\u200d", "\u0440", "nothing"])
def test_characters_cut_by_tokens_arrive_whole(tmp_path: Path, stop: str | None) -> None:
    text = b"".join(SPLIT).decode()
    with dictated(tmp_path, SPLIT) as generator:
        said = whole_and_streamed(generator, stop=stop)
        assert said["content"] == (text if stop is None else text.split(stop)[0])
        for num_tokens in range(1, len(SPLIT)):
            cut = whole_and_streamed(generator, max_tokens=num_tokens, stop=stop)
            shown = b"".join(SPLIT[:num_tokens]).decode(errors="replace")
            ends = stop is not None and stop in shown
            assert cut["content"] == (shown.split(stop)[0] if ends else shown)
            assert cut["content"].count("\ufffd") <= 1
            assert cut["finish_reason"] == ("stop" if ends else "length")


ALPHA = [b"alpha ", b"beta", b" gamma"]


@pytest.mark.parametrize(
    ("script", "fields", "text", "reason", "num_tokens"),
    [
        (ALPHA[:2], {"stop": ["beta gamma"]}, "alpha beta", "stop", 3),
        (ALPHA, {"stop": ["beta gamma"], "max_tokens": 2}, "alpha beta", "length", 2),
        (ALPHA, {"stop": ["beta gamma"]}, "alpha ", "stop", 3),
        (ALPHA, {"stop": ["beta", "a b"]}, "alph", "stop", 2),
        (ALPHA, {"stop": "a"}, "", "stop", 1),
        (ALPHA, {}, "alpha beta gamma", "stop", 4),
        ([], {}, "", "stop", 1),
        ([], {"max_tokens": 1}, "", "stop", 1),
        (ALPHA, {"max_tokens": 3}, "alpha beta gamma", "length", 3),
    ],
)
def test_every_end_has_its_text_and_one_reason(
    tmp_path: Path,
    script: list[bytes],
    fields: dict[str, Any],
    text: str,
    reason: str,
    num_tokens: int,
) -> None:
    with dictated(tmp_path, script) as generator:
        said = whole_and_streamed(generator, **fields)
    assert (said["content"], said["finish_reason"]) == (text, reason)
    assert said["usage"]["completion_tokens"] == num_tokens


def test_a_failure_in_the_middle_is_an_error_and_no_finish(tmp_path: Path) -> None:
    with dictated(tmp_path, [b"a", b"b", b"c"], fails=True) as generator:
        before, whole, streamed, after = ask_together(
            generator, [chat(max_tokens=2), chat(), chat(stream=True), chat(max_tokens=2)]
        )
        assert (whole.status_code, error_of(whole)["type"]) == (500, "server_error")
        chunks = events(streamed)
        said = [chunk["choices"][0] for chunk in chunks[:-1]]
        assert "".join(one["delta"].get("content", "") for one in said) == "abc"
        assert {one["finish_reason"] for one in said} == {None}
        assert set(chunks[-1]) == {"error"}
        for one in (before, after, *ask_together(generator, [chat(max_tokens=2)])):
            assert one.json()["choices"][0]["message"]["content"] == "ab"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    """It says a for ever; context and KV cache hold 96 tokens."""
    folder = tmp_path_factory.mktemp("endless")
    settings = {"kv_cache_bytes": 96 * 64}
    with dictated(folder, [b"a"], is_endless=True, settings=settings) as generator:
        assert generator.plan.kv_tokens == generator.plan.max_model_len == 96
        yield generator


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 5, 17])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_exactly_as_many_tokens_as_asked(
    endless: TextGenerator, field: str, num_tokens: int
) -> None:
    said = whole_and_streamed(endless, **{field: num_tokens})
    assert said["content"] == "a" * num_tokens
    assert said["finish_reason"] == "length"
    assert said["usage"]["completion_tokens"] == num_tokens == len(said["token_ids"])


@pytest.mark.parametrize("limit", [{}, {"max_tokens": None}, {"max_completion_tokens": None}])
def test_without_a_limit_a_chat_goes_to_the_end_of_the_context(
    endless: TextGenerator, limit: dict[str, Any]
) -> None:
    steps = endless.stats().counters.get("steps", 0)
    said = whole_and_streamed(endless, **limit)
    assert said["usage"]["total_tokens"] == 96
    assert said["finish_reason"] == "length"
    # Nothing is shifted out and computed again: never more steps than tokens.
    assert endless.stats().counters["steps"] - steps <= 2 * 96


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "4", 2**31, 2**63, True, 96, 2**31 - 1])
def test_limits_that_cannot_be_kept_are_refused_by_the_name_they_were_given(
    endless: TextGenerator, field: str, value: Any
) -> None:
    refused, good = ask_together(endless, [chat(**{field: value}), chat(max_tokens=2)])
    assert (refused.status_code, error_of(refused)["param"]) == (400, field)
    assert good.json()["choices"][0]["message"]["content"] == "aa"


def test_what_the_cache_can_never_hold_is_refused_and_the_rest_goes_on(
    endless: TextGenerator,
) -> None:
    def body(num_tokens: int, max_tokens: int) -> dict[str, Any]:
        return {"model": "tiny", "prompt": [83] * num_tokens, "max_tokens": max_tokens}

    long, too_many, small, just = ask_together(
        endless, [body(120, 10), body(90, 100), body(10, 5), body(90, 6)], TEXT
    )
    assert (long.status_code, error_of(long)["param"]) == (400, "prompt")
    assert (too_many.status_code, error_of(too_many)["param"]) == (400, "max_tokens")
    assert small.json()["usage"]["completion_tokens"] == 5
    assert just.json()["usage"]["completion_tokens"] == 6
    messages = [{"role": "user", "content": "S" * 120}]
    (chatted,) = ask_together(endless, [chat(messages=messages)])
    assert (chatted.status_code, error_of(chatted)["param"]) == (400, "messages")
    assert "96" in error_of(chatted)["message"]
    before_s = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before_s < 0.1  # with nothing to run, nothing turns


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**31])
def test_stop_ids_outside_the_vocabulary_are_refused_and_touch_nobody(
    endless: TextGenerator, token_id: int
) -> None:
    bodies = [chat(max_tokens=20), chat(stop_token_ids=[token_id]), chat(max_tokens=20)]
    before, refused, after = ask_together(endless, bodies)
    assert (refused.status_code, error_of(refused)["param"][:14]) == (400, "stop_token_ids")
    for one in (before, after):
        assert one.json()["choices"][0]["message"]["content"] == "a" * 20


def test_choices_arrive_by_their_index_and_are_counted_together(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    generator = build(path, name="tiny", threads=1)
    body = chat(n=3, seed=4, temperature=1.0, logprobs=True, max_tokens=9, stop=["e"])
    try:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        bodies = [body, {**body, **options}, {**body, "n": 1}, {**body, "cache_salt": "mine"}]
        whole, streamed, first, again = ask_together(generator, bodies)
    finally:
        generator.close()
    assert [one["index"] for one in whole.json()["choices"]] == [0, 1, 2]
    assert whole.json()["choices"][0] == first.json()["choices"][0]
    assert whole.json()["choices"] == again.json()["choices"]
    chunks = events(streamed)
    for choice in whole.json()["choices"]:
        mine = [
            one["choices"][0]
            for one in chunks
            if one["choices"] and one["choices"][0]["index"] == choice["index"]
        ]
        text = "".join(one["delta"].get("content", "") for one in mine)
        assert text == choice["message"]["content"]
        assert [one["finish_reason"] for one in mine if one["finish_reason"]] == [
            choice["finish_reason"]
        ]
    usages = [one["usage"] for one in chunks if one.get("usage")]
    assert len(usages) == 1
    assert usages[0]["completion_tokens"] == whole.json()["usage"]["completion_tokens"]
    assert first.json()["usage"]["completion_tokens"] < usages[0]["completion_tokens"]
