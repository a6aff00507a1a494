"""Prompts told of themselves through the server, whatever cuts them and whatever is computed."""

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

    import httpx

    from insitu.llm.text_generator import TextGenerator

LENGTHS = (15, 16, 17, 31, 32, 33, 100, 103)
NUM_OUTPUT = 4


@pytest.fixture(scope="module")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("echo") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def whole(random_file: Path) -> Iterator[TextGenerator]:
    yield from made(random_file, prefix_caching="off")


@pytest.fixture(scope="module")
def chunked(random_file: Path) -> Iterator[TextGenerator]:
    """It computes 16 tokens a step at most and keeps blocks of 16."""
    yield from made(random_file, max_num_batched_tokens=16, block_size=16)


def made(path: Path, **settings: Any) -> Iterator[TextGenerator]:
    generator = build(path, name="tiny", threads=1, **settings)
    try:
        yield generator
    finally:
        generator.close()


def body(num_tokens: int, **fields: Any) -> dict[str, Any]:
    prompt = [65 + 7 * i % 50 for i in range(num_tokens)]
    sampling = {"temperature": 0, "max_tokens": NUM_OUTPUT, "ignore_eos": True}
    return {"model": "tiny", "prompt": prompt, **sampling, **fields}


def entries(response: httpx.Response) -> dict[str, list[Any]]:
    """The parts of ``logprobs``, whole or joined from a stream."""
    if not response.headers["content-type"].startswith("text/event-stream"):
        told: dict[str, list[Any]] = response.json()["choices"][0]["logprobs"]
        return told
    parts = [chunk["choices"][0]["logprobs"] for chunk in events(response) if chunk["choices"]]
    parts = [part for part in parts if part is not None]
    return {name: [one for part in parts for one in part[name]] for name in parts[0]}


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_chunks_company_and_what_was_computed_before_change_nothing(
    whole: TextGenerator, chunked: TextGenerator, num_tokens: int
) -> None:
    asked = body(num_tokens, echo=True, logprobs=3)
    (plain,) = ask_together(whole, [asked], TEXT)
    wanted = entries(plain)
    assert {len(values) for values in wanted.values()} == {num_tokens + NUM_OUTPUT}
    assert wanted["token_logprobs"][0] is None
    assert wanted["top_logprobs"][0] is None
    assert None not in wanted["token_logprobs"][1:]
    assert wanted["text_offset"] == sorted(wanted["text_offset"])
    ask_together(chunked, [body(num_tokens)], TEXT)  # computed, told nothing of
    others = [body(20 + i, max_tokens=60, seed=i, temperature=1) for i in range(3)]
    alone = ask_together(chunked, [asked], TEXT)
    crowd = ask_together(chunked, [*others, asked, {**asked, "stream": True}], TEXT)
    for answer in (*alone, *crowd[3:]):
        assert answer.status_code == 200, answer.text
        assert entries(answer) == wanted
