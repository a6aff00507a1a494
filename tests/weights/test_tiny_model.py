"""The tiny models other tests stand on: deterministic, twins of each other, dictated chains."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tiny_model import TinyShape, write_chain_gguf, write_gguf, write_safetensors

from insitu.kernels.blocks import BlockType
from insitu.kernels.reference import Reference
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def logits(path: Path, token_ids: Sequence[int]) -> npt.NDArray[np.float32]:
    """Of every position, by the definition: [tokens, vocab_size]."""
    model = load_model(open_source(path))
    reference = Reference(model.program, kv_layout(model.spec, dtype="f32"))
    rows = np.arange(len(token_ids), dtype=np.int32)
    table = np.zeros((1, 1), np.int32)
    starts, lens = np.array([0, len(rows)], np.int32), np.array([len(rows)], np.int32)
    ids = np.array(token_ids, np.int32)
    return reference.run(Batch(ids, rows, rows, table, starts, lens, rows))


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_gguf(tmp_path / name, seed=int(name == "c"))
    first = (tmp_path / "a").read_bytes()
    assert len(first) < 200_000
    assert first == (tmp_path / "b").read_bytes()
    assert first != (tmp_path / "c").read_bytes()


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_twin_gives_the_same_logits(tmp_path: Path, architecture: str, tied: bool) -> None:
    sizes: dict[str, Any] = {"architecture": architecture, "tied": tied}
    shape = write_gguf(tmp_path / "m.gguf", block_types=BlockType.F32, **sizes)
    write_safetensors(tmp_path / "twin", dtype=BlockType.F32, **sizes)
    ids = [5, 100, 287, 5, 42]
    ours, twin = logits(tmp_path / "m.gguf", ids), logits(tmp_path / "twin", ids)
    assert ours.shape == (5, len(shape.vocabulary))
    # Rope pairs lie differently in the two files, so sums run in another order: not to the bit.
    np.testing.assert_allclose(ours, twin, rtol=1e-4, atol=1e-4)
    assert np.abs(ours[0] - ours[3]).max() > 1e-3  # attention matters: same token, other place


def test_k_types_load(tmp_path: Path) -> None:
    kinds = {"attn_q": BlockType.Q4_K, "ffn_down": BlockType.Q6_K}
    path = tmp_path / "m.gguf"
    write_gguf(path, hidden_size=256, intermediate_size=256, block_types=kinds)
    assert np.isfinite(logits(path, [1, 2, 3])).all()


def test_a_chain_says_what_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "chain.gguf"
    words = TinyShape().vocabulary
    start, end = words.id_of("hello"), words.id_of("<|im_end|>")
    steps = [start, words.id_of_byte(0xF0), words.id_of_byte(0x9F), words.id_of(" the")]
    write_chain_gguf(path, dict(itertools.pairwise(steps)))
    assert logits(path, steps).argmax(axis=1).tolist() == [*steps[1:], end]


def test_extra_tokens_have_ids_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "chain.gguf"
    shape = write_chain_gguf(path, {}, extra_tokens=["alpha ", "Größe"])
    first, second = shape.vocabulary.id_of("alpha "), shape.vocabulary.id_of("Größe")
    shape = write_chain_gguf(path, {0: first, first: second}, extra_tokens=["alpha ", "Größe"])
    assert logits(path, [0, first]).argmax(axis=1).tolist() == [first, second]


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_vocabulary_encodes(tmp_path: Path, architecture: str) -> None:
    shape = write_safetensors(tmp_path, architecture=architecture)
    encoder = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = "hello the user"
    ids = encoder.encode(text).ids
    assert ids == [shape.vocabulary.id_of(word) for word in ("hello", " the")] + ids[2:]
    assert encoder.decode(ids) == text
    assert encoder.encode("<|im_end|>").ids == [shape.vocabulary.id_of("<|im_end|>")]
