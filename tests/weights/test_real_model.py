"""The pulled model: read as the format's own package reads it, and quickly."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import gguf
import pytest

from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.model
def test_smollm2_agrees_with_the_gguf_package(smollm2_path: Path) -> None:
    start = time.process_time()
    source = open_source(smollm2_path)
    assert time.process_time() - start < 0.15
    theirs = gguf.GGUFReader(smollm2_path)
    assert list(source.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = source.tensors[tensor.name]
        assert (info.offset, info.num_bytes) == (tensor.data_offset, tensor.n_bytes)
        assert info.shape == tuple(int(dim) for dim in reversed(tensor.shape))
        assert info.block_type == tensor.tensor_type.name
    for key in ("tokens", "merges"):
        name = f"tokenizer.ggml.{key}"
        assert source.metadata.strings(name) == theirs.fields[name].contents()
    source.close()
