"""What a vocabulary will take is told from its kind, before it is read."""

from __future__ import annotations

from codec import tiny_vocabulary as tiny

from insitu.codec.vocabulary_bytes import vocabulary_bytes

MOST = 2 * 2**20  # of vocabularies as small as these


def of(source: tiny.FakeSource) -> int:
    return vocabulary_bytes(source)  # type: ignore[arg-type]


def test_a_file_tells_its_kind() -> None:
    by_merges = of(tiny.FakeSource(values=tiny.metadata_values()))
    by_search = of(tiny.FakeSource(values={**tiny.metadata_values(), "tokenizer.ggml.model": "t5"}))
    assert 0 < by_merges < by_search < MOST


def test_a_folder_tells_its_kind() -> None:
    file = tiny.tokenizer_json()
    searched = {**file, "model": {"type": "Unigram", "vocab": [["a", 0.0]]}}
    assert 0 < of(tiny.folder(file)) < of(tiny.folder(searched)) < MOST
