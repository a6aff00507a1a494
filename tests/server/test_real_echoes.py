"""Echoed prompts with log-probabilities: the same however a prompt is cut, found or accompanied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from server.asking import TEXT, events
from server.dictated import ask_together
from tiny_model import write_gguf

from insitu.llm.build import build

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

BLOCK_SIZE, CHUNK = 16, 16
LENGTHS = (1, 15, 16, 17, 31, 32, 33, 100, 103)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("echoes") / "random.gguf"
    write_gguf(made)
    return made


def built(path: Path, **settings: Any) -> TextGenerator:
    return build(path, name="tiny", threads=1, block_size=BLOCK_SIZE, **settings)


@pytest.fixture(scope="module")
def chunked(path: Path) -> Iterator[TextGenerator]:
    """A prompt of more than 16 tokens takes several steps."""
    made = built(path, max_num_batched_tokens=CHUNK)
    yield made
    made.close()


@pytest.fixture(scope="module")
def whole(path: Path) -> Iterator[TextGenerator]:
    """A prompt takes one step, and nothing of it is kept."""
    made = built(path, max_num_batched_tokens=512, max_num_seqs=128, prefix_caching="off")
    yield made
    made.close()


def asked(length: int, **fields: Any) -> dict[str, Any]:
    ids = [40 + place % 50 for place in range(length)]
    asked = {"model": "tiny", "prompt": ids, "temperature": 0, "max_tokens": 4, "ignore_eos": True}
    return {**asked, "echo": True, "logprobs": 3, **fields}


def joined(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    parts = [chunk["choices"][0] for chunk in chunks]
    logprobs: dict[str, Any] = {}
    for part in parts:
        for key, values in (part["logprobs"] or {}).items():
            logprobs.setdefault(key, []).extend(values)
    ends = {"finish_reason": parts[-1]["finish_reason"], "index": 0}
    return {"text": "".join(part["text"] for part in parts), "logprobs": logprobs, **ends}


@pytest.mark.parametrize("length", LENGTHS)
def test_an_echo_has_every_token_once(
    chunked: TextGenerator, whole: TextGenerator, length: int
) -> None:
    (reference,) = ask_together(whole, [asked(length)], TEXT)
    expected = reference.json()["choices"][0]
    others = [asked(20, max_tokens=60, echo=False, seed=seed, temperature=1) for seed in range(3)]
    both = [asked(length), asked(length, stream=True)]
    (alone,) = ask_together(chunked, both[:1], TEXT)
    beside, streamed, *_ = ask_together(chunked, [*both, *others], TEXT)
    assert alone.json()["choices"][0] == expected
    assert beside.json()["choices"][0] == expected
    assert joined(events(streamed)) == expected
    logprobs = expected["logprobs"]
    assert {len(values) for values in logprobs.values()} == {length + 4}
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert all(len(top) in {3, 4} for top in logprobs["top_logprobs"][1:])
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets)
    for token, offset in zip(logprobs["tokens"], offsets, strict=True):
        assert token.startswith("bytes:") or expected["text"].startswith(token, offset)


def test_what_is_found_computed_takes_nothing_from_an_echo(chunked: TextGenerator) -> None:
    salt = {"cache_salt": "warm", "max_tokens": 1}
    plain, first, again, after = (
        ask_together(chunked, [body], TEXT)[0].json()
        for body in (
            asked(103, echo=False, logprobs=None, **salt),
            asked(103, logprobs=2, **salt),
            asked(103, logprobs=2, **salt),
            asked(103, echo=False, logprobs=None, **salt),
        )
    )
    assert first["choices"] == again["choices"]
    assert len(first["choices"][0]["logprobs"]["token_logprobs"]) == 103 + 1
    cached = [
        one["usage"]["prompt_tokens_details"]["cached_tokens"]
        for one in (plain, first, again, after)
    ]
    assert cached == [0, 0, 0, 96]
    assert first["choices"][0]["text"].endswith(plain["choices"][0]["text"])
    assert plain["choices"] == after["choices"]
