"""Vectors of prompts: the same to the last bit in any company, of the prompt's last token."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tiny_model import TinyShape, random_weights, write_gguf

from insitu.kernels.blocks import BlockType
from insitu.kernels.native import available_isas
from insitu.kernels.reference import Reference
from insitu.llm.build import build
from insitu.llm.front_door import LLM
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.refusal import Refusal, RequestFailed
from insitu.sampling_params import SamplingParams
from insitu.types import Caller, Embedding, Request
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from insitu.llm.text_generator import TextGenerator

TEXTS = ["hello world", "a", "the quick brown fox " * 9, "once upon a time", "hello world, again"]


def vectors(llm: LLM, prompts: list[Any] = TEXTS, **how: Any) -> list[tuple[float, ...]]:
    return [one.vector for one in llm.embed(prompts, **how)]


@pytest.fixture(scope="module")
def alone(random_path: Path) -> list[tuple[float, ...]]:
    """Each text's vector from a model that makes nothing else."""
    with LLM(random_path, threads=1, prefix_caching="off") as llm:
        return [vectors(llm, [text])[0] for text in TEXTS]


def test_a_vector_is_the_last_tokens_row_before_the_head(
    random_path: Path, alone: list[tuple[float, ...]], random_llm: LLM
) -> None:
    source = open_source(random_path)
    model = load_model(source, None)
    for text, vector in zip(TEXTS[:2], alone, strict=False):
        ids = random_llm.embed(text)[0].prompt_ids
        at = np.arange(len(ids), dtype=np.int32)
        table, start = np.zeros((1, 8), np.int32), np.array([0, len(ids)], np.int32)
        kv = kv_layout(model.spec, block_size=256, dtype="f32")
        batch = Batch(np.array(ids, np.int32), at, at, table, start, start[1:], at[:0], at[-1:])
        defined = Reference(model.program, kv).pool(batch)[0]
        assert np.dot(defined, vector) > 0.999
        assert math.isclose(np.dot(defined, defined), 1, rel_tol=1e-6)
    source.close()
    assert all(math.isclose(sum(x * x for x in one), 1, rel_tol=1e-6) for one in alone)


@pytest.mark.parametrize("isa", available_isas())
def test_no_way_moves_a_bit(
    random_path: Path,
    alone: list[tuple[float, ...]],
    isa: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INSITU_ISA", isa)
    # A step holds less than the longest prompt; the second time all are found computed.
    with LLM(random_path, threads=2, max_num_seqs=4, max_num_batched_tokens=16) as llm:
        assert vectors(llm) == alone
        again = llm.embed(TEXTS)
        assert [one.vector for one in again] == alone
        assert again[2].usage.cached_tokens > 0
        assert vectors(llm, [llm.embed(TEXTS[2])[0].prompt_ids]) == alone[2:3]


async def _busy(generator: TextGenerator) -> list[bytes | None]:
    """Vectors asked for while others generate, start and are given up."""
    params = SamplingParams(max_tokens=40, temperature=0.9, seed=3, ignore_eos=True)

    async def speak(name: str, prompt: str) -> None:
        asked = Request(name, "tiny", prompt=prompt, sampling=replace(params, n=2))
        stream = generator.stream(await generator.prepare(asked), Caller())
        async for _ in stream:
            if name.endswith("left"):
                break
        await stream.aclose()  # type: ignore[attr-defined]

    async def embed(name: str, prompt: str) -> bytes | None:
        asked = Request(name, "tiny", prompt=prompt, embedding=Embedding())
        prepared = await generator.prepare(asked)
        (delta,) = [one async for one in generator.stream(prepared, Caller())]
        return delta.vector

    speakers = [
        asyncio.create_task(speak(f"{index} {end}", "once upon a time " * (1 + 4 * index)))
        for index in range(4)
        for end in ("stays", "left")
    ]
    await asyncio.sleep(0)
    made = await asyncio.gather(*(embed(f"e{at}", text) for at, text in enumerate(TEXTS)))
    await asyncio.gather(*speakers)
    return made


@pytest.mark.parametrize("how", [{}, {"kv_cache_bytes": "64KiB", "max_num_batched_tokens": 24}])
def test_a_busy_batch_changes_nothing(
    random_path: Path, alone: list[tuple[float, ...]], how: dict[str, Any]
) -> None:
    if "kv_cache_bytes" in how:
        how = {**how, "kv_cache_bytes": 64 * 1024}
    generator = build(random_path, name="tiny", threads=2, max_num_seqs=6, **how)
    made = asyncio.run(_busy(generator))
    generator.close()
    assert [np.frombuffer(one or b"", "<f4").tolist() for one in made] == [list(x) for x in alone]


def test_dimensions_are_the_first_numbers_of_length_1_again(
    random_llm: LLM, alone: list[tuple[float, ...]]
) -> None:
    size = random_llm.describe().embedding_size
    assert vectors(random_llm, dimensions=size) == alone
    for whole, cut in zip(alone, vectors(random_llm, dimensions=5), strict=True):
        length = math.sqrt(math.fsum(x * x for x in whole[:5]))
        assert cut == tuple(float(np.float32(x / length)) for x in whole[:5])
    for wrong in (0, -1, size + 1):
        with pytest.raises(Refusal, match="dimensions") as refused:
            random_llm.embed("a", dimensions=wrong)
        assert refused.value.param == "dimensions"


@pytest.fixture(scope="module")
def short_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A context of 64 tokens, and steps of 48."""
    path = tmp_path_factory.mktemp("short") / "short.gguf"
    write_gguf(path, max_model_len=64)
    with LLM(path, threads=1, max_num_batched_tokens=48) as llm:
        yield llm


def test_a_prompt_may_fill_the_context_and_no_more(short_llm: LLM) -> None:
    ids = [5 + index % 40 for index in range(1000)]
    alone = {num: vectors(short_llm, [ids[:num]])[0] for num in (47, 48, 49, 63, 64)}
    assert len(set(alone.values())) == len(alone)
    mixed = vectors(short_llm, [[7], *(ids[:num] for num in alone), [9, 8]])
    assert mixed[1:-1] == list(alone.values())
    assert [mixed[0], mixed[-1]] == vectors(short_llm, [[7], [9, 8]])
    for num in (65, 1000):
        with pytest.raises(Refusal, match=f"At most 64 tokens .* has {num}") as refused:
            short_llm.embed([ids[:num]])
        assert refused.value.code == "context_length_exceeded"
        cut = short_llm.embed([[7], ids[:num]], truncate=True)
        assert [cut[0].vector, cut[1].vector] == [mixed[0], alone[64]]
        assert (cut[0].warnings, cut[1].usage.prompt_tokens) == ((), 64)
        assert cut[1].warnings == ("The prompt was cut to its first 64 tokens.",)


def test_a_text_is_cut_without_looking_at_all_of_it(
    short_llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refusal) as refused:
        short_llm.embed("word " * 100_000)
    assert refused.value.code == "context_length_exceeded"
    lengths = []
    tokenizer = short_llm._generator.preparer.tokenizer
    encode = type(tokenizer).encode

    def counted(self: Any, text: str, **how: Any) -> list[int]:
        lengths.append(len(text))
        return encode(self, text, **how)

    monkeypatch.setattr(type(tokenizer), "encode", counted)
    for word in ("word ", "é", " "):
        (cut,) = short_llm.embed(word * 100_000, truncate=True)
        (begun,) = short_llm.embed(word * 500, truncate=True)
        assert cut.prompt_ids == begun.prompt_ids
        assert (cut.vector, cut.warnings) == (begun.vector, begun.warnings)
        assert cut.usage.prompt_tokens == 64
    assert max(lengths) < 10_000


def test_what_is_not_finite_fails_alone(tmp_path: Path) -> None:
    path, good = tmp_path / "spoilt.gguf", [7, 8, 10]
    write_gguf(path)
    with LLM(path, threads=1) as llm:
        expected = vectors(llm, [good])
    weights = random_weights(TinyShape())
    weights["model.embed_tokens.weight"][9] = np.inf
    kept = {"token_embd": BlockType.F32}
    write_gguf(path, weights=weights, block_types=kept)
    with LLM(path, threads=1) as llm:
        with pytest.raises(RequestFailed, match="not finite") as failed:
            llm.embed([[7, 9], good])
        assert failed.value.status == 500
        assert np.allclose(vectors(llm, [good] * 20), expected * 20, atol=0.05)
        assert len(set(vectors(llm, [good] * 20))) == 1
