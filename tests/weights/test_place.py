"""Placement: shapes checked, biases joined, nothing left over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf_bytes import TENSOR_TYPES, TensorBytes, gguf_bytes

from insitu.kernels.blocks import BlockType
from insitu.kernels.encode import encode
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.gguf import GGUFFile
from insitu.weights.place import Placement

if TYPE_CHECKING:
    from pathlib import Path


def tensor(name: str, block_type: BlockType, *shape: int) -> TensorBytes:
    """A tensor counting up from its first weight."""
    weights = np.arange(np.prod(shape), dtype=np.float32).reshape(-1, shape[-1])
    data = encode(block_type, weights)
    return TensorBytes(name, list(reversed(shape)), TENSOR_TYPES[block_type], data)


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    """Two matrices with biases, a norm and a vector that is quantised."""
    tensors = [
        tensor("q", BlockType.Q4_0, 4, 64),
        tensor("k", BlockType.Q8_0, 2, 64),
        tensor("q.bias", BlockType.F32, 4),
        tensor("k.bias", BlockType.F16, 2),
        tensor("odd", BlockType.F32, 2, 32),
        tensor("norm", BlockType.BF16, 64),
        tensor("packed", BlockType.Q8_0, 32),
        tensor("cube", BlockType.F32, 2, 2, 2),
    ]
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({}, tensors))
    return Placement(GGUFFile(tmp_path / "m.gguf"))


def test_a_linear_has_one_segment_a_name(placement: Placement) -> None:
    linear = placement.linear("q", "k", biases=("q.bias", "k.bias"), n=(4, 2), k=64)
    assert [(s.name, s.block_type, s.n, s.k) for s in linear.segments] == [
        ("q", BlockType.Q4_0, 4, 64),
        ("k", BlockType.Q8_0, 2, 64),
    ]
    assert linear.bias is not None
    assert linear.bias.tolist() == [0, 1, 2, 3, 0, 1]
    assert placement.linear("k").bias is None


def test_a_vector_is_float32_of_its_own(placement: Placement) -> None:
    norm = placement.vector("norm", 64)
    assert norm.dtype == np.float32
    assert norm.tolist() == list(range(64))
    norm[0] = 5  # a copy, not the file


def test_wrong_shapes_name_the_tensor(placement: Placement) -> None:
    with pytest.raises(ModelFileError, match=r"tensor odd: has shape \[2, 32\], not \[2, 64\]"):
        placement.linear("q", "odd")
    with pytest.raises(ModelFileError, match=r"tensor q: has shape \[4, 64\], not \[5, 64\]"):
        placement.linear("q", n=(5,), k=64)
    with pytest.raises(ModelFileError, match=r"tensor cube"):
        placement.linear("cube")
    with pytest.raises(ModelFileError, match=r"tensor norm"):
        placement.linear("norm")
    with pytest.raises(ModelFileError, match=r"tensor k\.bias: has shape \[2\], not \[4\]"):
        placement.linear("q", biases=("k.bias",))
    with pytest.raises(ModelFileError, match=r"tensor norm: has shape \[64\], not \[63\]"):
        placement.vector("norm", 63)
    with pytest.raises(UnsupportedModelError, match="tensor packed: is Q8_0"):
        placement.vector("packed", 32)


def test_missing_and_left_over_tensors_are_named(placement: Placement) -> None:
    assert placement.has("q")
    assert not placement.has("v")
    with pytest.raises(ModelFileError, match="tensor v: is missing"):
        placement.linear("v")
    for name in ("q", "k", "odd"):
        placement.linear(name)
    placement.vector("norm", 64)
    with pytest.raises(UnsupportedModelError, match=r"q\.bias, k\.bias, packed, cube"):
        placement.finish()
