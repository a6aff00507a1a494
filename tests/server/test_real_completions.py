"""Text completions over a dictated model: streamed and whole the same, offsets in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from server.asking import TEXT, events
from server.dictated import START, ask_together, dictated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from insitu.llm.text_generator import TextGenerator

SCRIPT = [
    b" lead", b"\xf0", b"\x9f\x98", b"\x80", b"!", b"\xd0", b"\x9f\xd1", b"\x80x", b"\xe2", b"\x82",
    b"\xac tail",
]  # fmt: skip
WHOLE = b"".join(SCRIPT).decode()


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextGenerator]:
    with dictated(tmp_path_factory.mktemp("text"), SCRIPT) as made:
        yield made


def choice_of(generator: TextGenerator, **fields: Any) -> dict[str, Any]:
    """The choice, asked for both ways: streamed chunks join to it."""
    asked = {"model": "tiny", "prompt": START, "temperature": 0, "logprobs": 2, **fields}
    whole, streamed = ask_together(generator, [asked, {**asked, "stream": True}], TEXT)
    choice: dict[str, Any] = whole.json()["choices"][0]
    said = [chunk["choices"][0] for chunk in events(streamed)]
    assert "".join(one["text"] for one in said) == choice["text"]
    for key, values in choice["logprobs"].items():
        assert [v for one in said if one["logprobs"] for v in one["logprobs"][key]] == values, key
    assert [one["finish_reason"] for one in said if one["finish_reason"]] == [
        choice["finish_reason"]
    ]
    return choice


@pytest.mark.parametrize("stop", [None, "!", "\u0440x", "\u20ac t", "ead\U0001f600"])
def test_every_cut_is_the_same_both_ways(generator: TextGenerator, stop: str | None) -> None:
    for max_tokens in range(1, len(SCRIPT) + 2):
        choice = choice_of(generator, max_tokens=max_tokens, stop=stop)
        text = b"".join(SCRIPT[:max_tokens]).decode(errors="replace")
        cut = text.split(stop)[0] if stop else text
        assert choice["text"] == cut
        has_ended = cut != text or max_tokens > len(SCRIPT)
        assert choice["finish_reason"] == ("stop" if has_ended else "length")
        offsets = choice["logprobs"]["text_offset"]
        assert offsets == sorted(offsets)
        assert offsets[0] == 0 if offsets else not cut
        assert len(offsets) == len(choice["logprobs"]["tokens"])


def test_each_token_begins_where_its_offset_says(generator: TextGenerator) -> None:
    choice = choice_of(generator, max_tokens=50)
    assert choice["text"] == WHOLE
    offsets = choice["logprobs"]["text_offset"]
    starts = [
        len(b"".join(SCRIPT[:index]).decode(errors="ignore")) for index in range(len(SCRIPT) + 1)
    ]
    assert offsets == starts
    for token, offset in zip(choice["logprobs"]["tokens"], offsets, strict=True):
        assert token.startswith("bytes:") or WHOLE.startswith(token, offset)


def test_an_echo_is_as_long_as_its_prompt_and_known_but_for_its_first_token(
    generator: TextGenerator,
) -> None:
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 2, "logprobs": 1}
    ids = generator.preparer.tokenizer.encode(
        f"abc{START}", add_special_tokens=False, parse_special=False
    )
    plain, echoed = ask_together(
        generator,
        [{**asked, "prompt": ids}, {**asked, "prompt": ids, "echo": True}],
        TEXT,
    )
    said, choice = plain.json()["choices"][0], echoed.json()["choices"][0]
    assert choice["text"] == f"abc{START}{said['text']}"
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["token_logprobs"][len(ids) :] == said["logprobs"]["token_logprobs"]
    assert logprobs["tokens"][: len(ids)] == ["a", "b", "c", START]
    assert logprobs["text_offset"][: len(ids)] == [0, 1, 2, 3]
    assert len(logprobs["tokens"]) == len(ids) + 2
