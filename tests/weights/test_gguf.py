"""GGUF: what is read agrees with the format's own package; every fault is named, quickly."""

from __future__ import annotations

import struct
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    I32,
    TENSOR_TYPES,
    U8,
    U16,
    U32,
    Builder,
    TensorBytes,
    Typed,
    gguf_bytes,
)
from tiny_model import write_gguf

from insitu.kernels.blocks import BlockType
from insitu.weights.errors import ModelFileError
from insitu.weights.gguf import BLOCK_TYPES, TYPE_NAMES, GGUFFile
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROW = 16  # bytes of a row of four F32


def f32(name: str, dims: Sequence[int], offset: int | None = None) -> TensorBytes:
    """An F32 tensor of zeros."""
    size = 4
    for dim in dims:
        size *= dim
    return TensorBytes(name, dims, TENSOR_TYPES["F32"], bytes(size), offset)


def opened(tmp_path: Path, raw: bytes) -> GGUFFile:
    """Open these bytes as a file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return GGUFFile(path)


def refused(tmp_path: Path, raw: bytes, match: str) -> ModelFileError:
    """Refuse these bytes within 100 ms and 16 MB, with an error that says ``match``."""
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ModelFileError, match=match) as caught:
        GGUFFile(path)
    elapsed_s = time.process_time() - start
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed_s < 0.1
    assert peak_bytes < 16 << 20
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_agrees_with_the_gguf_package(tmp_path: Path, architecture: str, version: int) -> None:
    path = tmp_path / "m.gguf"
    mixed = {"attn_q": BlockType.Q4_K, "attn_v": BlockType.Q6_K, "ffn_up": BlockType.Q4_1}
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "architecture": architecture,
    }
    write_gguf(path, block_types=mixed, version=version, **sizes)
    source, theirs = open_source(path), gguf.GGUFReader(path)
    assert [tensor.name for tensor in theirs.tensors] == list(source.tensors)
    for tensor in theirs.tensors:
        info = source.tensors[tensor.name]
        assert info.shape == tuple(int(dim) for dim in reversed(tensor.shape))
        assert info.block_type == tensor.tensor_type.name
        assert source.read(tensor.name) == tensor.data.tobytes()
    keys = source.metadata
    tokens = theirs.fields["tokenizer.ggml.tokens"].contents()
    assert keys.strings("tokenizer.ggml.tokens") == tokens
    types = theirs.fields["tokenizer.ggml.token_type"].contents()
    assert keys.integers("tokenizer.ggml.token_type") == types
    template = theirs.fields["tokenizer.chat_template"].contents()
    assert keys.string("tokenizer.chat_template") == template
    theta = theirs.fields[f"{architecture}.rope.freq_base"].contents()
    assert keys.number(f"{architecture}.rope.freq_base") == theta
    assert keys.boolean("tokenizer.ggml.add_bos_token") is False
    source.close()


def test_type_numbers_are_the_package_s() -> None:
    theirs = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert {number: theirs[number] for number in TYPE_NAMES if number in theirs} == {
        number: name for number, name in TYPE_NAMES.items() if number in theirs
    }
    for number, block_type in BLOCK_TYPES.items():
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)]
        assert sizes == (block_type.block_size, block_type.block_bytes)


def test_views_are_read_only_and_outlive_the_file(tmp_path: Path) -> None:
    source = opened(tmp_path, gguf_bytes({}, [f32("a", [4])]))
    view = source.read("a")
    assert view.readonly
    source.close()
    assert bytes(view) == bytes(16)


def test_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    tokens = [f"token{index}" for index in range(152_000)]
    merges = [f"tok en{index}" for index in range(151_000)]
    raw = gguf_bytes({"tokens": tokens, "merges": merges, "types": [1] * 152_000})
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    fastest_s = 1.0
    for _ in range(3):
        start = time.process_time()
        source = GGUFFile(path)
        fastest_s = min(fastest_s, time.process_time() - start)
    assert fastest_s < 0.15
    assert source.metadata.strings("tokens") == tokens
    assert source.metadata.strings("merges") == merges


def head(num_tensors: int, num_pairs: int, version: int = 3) -> bytes:
    """The first 24 bytes."""
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)


KEY = struct.pack("<Q", 1) + b"k"
FAR = {
    "key length": (head(0, 1) + struct.pack("<Q", 0x7FFFFFFFFFFF), "key count"),
    "key length, room for a pair": (
        head(0, 1) + struct.pack("<QQ", 0x7FFFFFFFFFFF, 0),
        "key 0 length at offset 24",
    ),
    "array count": (head(0, 1) + KEY + struct.pack("<IIQ", 9, 4, 2**62), "count of value of k"),
    "pair count": (head(0, 2**63) + bytes(64), "key count at offset 16"),
    "tensor count": (head(2**63, 0) + bytes(64), "tensor count at offset 8"),
    "string length": (head(0, 1) + KEY + struct.pack("<IQ", 8, 2**64 - 1), "value of k length"),
    "one byte short": (head(0, 1) + KEY + struct.pack("<IQ", 8, 5) + b"four", "4 bytes left"),
    "string array": (
        head(0, 1) + KEY + struct.pack("<IIQQ", 9, 8, 2, 0) + struct.pack("<Q", 2**64 - 1),
        r"value of k\[1\]",
    ),
    "strings that wrap": (
        head(0, 1) + KEY + struct.pack("<IIQQQ", 9, 8, 2, 2**64 - 16, 8),
        r"value of k\[0\]",
    ),
    "cut in the magic": (b"GG", "magic"),
    "cut in the counts": (b"GGUF\x03\0\0\0\0\0", "tensor count"),
    "empty": (b"", "is empty"),
    "other magic": (b"GGML" + bytes(60), "is not GGUF"),
}


@pytest.mark.parametrize("name", FAR)
def test_lengths_and_counts_are_checked_before_use(tmp_path: Path, name: str) -> None:
    raw, match = FAR[name]
    refused(tmp_path, raw, match)


def test_many_empty_strings_are_refused_by_count(tmp_path: Path) -> None:
    raw = head(0, 1) + KEY + struct.pack("<IIQ", 9, 8, (4 << 20) + 1) + bytes(8 * (4 << 20) + 64)
    refused(tmp_path, raw, "count of value of k")


def test_byte_order_and_versions(tmp_path: Path) -> None:
    big = gguf_bytes({"general.name": "x"}, [f32("a", [4])], order=">")
    refused(tmp_path, big, "other byte order")
    for version in (0, 1, 4, 0x00030000):
        refused(tmp_path, gguf_bytes({}, version=version), f"version {version} is not supported")
    assert opened(tmp_path, gguf_bytes({"general.name": "x"}, version=2)).metadata.has(
        "general.name"
    )


def two(first: TensorBytes, second: TensorBytes) -> bytes:
    """A file of two tensors."""
    return gguf_bytes({}, [first, second])


def test_tensors_lie_apart_aligned_and_inside(tmp_path: Path) -> None:
    # A needs five rows of 16 bytes; the gap before B holds four, then it is one byte short.
    a = f32("a", [4, 5], 0)
    refused(tmp_path, two(a, f32("b", [4], 64)), "tensor b .*overlaps tensor a")
    refused(tmp_path, two(a, f32("b", [4], 0)), "overlaps")
    refused(tmp_path, gguf_bytes({"general.alignment": 8}, [f32("a", [4, 5]), f32("b", [4], 72)]),
            "overlaps")  # fmt: skip
    refused(tmp_path, two(a, f32("b", [4], 81)), "offset of tensor b .*multiple of 32")
    refused(tmp_path, raw_tensor(b"b", [4], 0, 1 << 40), "needs 16 bytes, with 0 left")
    odd = TensorBytes("a", [32], TENSOR_TYPES["MXFP4"], bytes(17), 0)  # ends one byte into B
    by_one = gguf_bytes({"general.alignment": 16}, [odd, f32("b", [4], 16)], alignment=16)
    refused(tmp_path, by_one, "tensor b .*overlaps tensor a")
    accepted = opened(tmp_path, two(f32("b", [4], 96), a))
    assert accepted.tensors["a"].offset < accepted.tensors["b"].offset
    exact = gguf_bytes({}, [a])
    assert len(opened(tmp_path, exact).read("a")) == 80
    refused(tmp_path, exact[:-1], "needs 80 bytes, with 79 left")


def raw_tensor(name: bytes, dims: Sequence[int], kind: int, offset: int = 0) -> bytes:
    """A file whose one tensor entry says this, with 64 bytes of data."""
    build = Builder()
    entry = build.string(name) + build.number("I", len(dims))
    entry += b"".join(build.number("Q", dim) for dim in dims)
    entry += build.number("I", kind) + build.number("Q", offset)
    return head(1, 0) + entry + bytes(128)


BAD_TENSORS = {
    "zero dimension": (raw_tensor(b"a", [4, 0], 0), "0 gives 0 weights"),
    "product overflows": (raw_tensor(b"a", [2**62 + 1, 4], 0), "dimension of tensor a"),
    "product wraps to zero": (raw_tensor(b"a", [2**32, 2**32], 0), "dimension of tensor a"),
    "no dimensions": (raw_tensor(b"a", [], 0), "dimensions of tensor a .*are 0"),
    "five dimensions": (raw_tensor(b"a", [1] * 5, 0), "are 5"),
    "part blocks": (raw_tensor(b"a", [33], 8), "rows of 33, not whole Q8_0 blocks"),
    "unknown type": (raw_tensor(b"a", [32], 99), "99 is not a tensor type"),
    "type left out of the format": (raw_tensor(b"a", [32], 4), "4 is not a tensor type"),
    "known type": (raw_tensor(b"a", [256], 24), r"I8 \(type 24\) is not supported yet"),
    "empty name": (raw_tensor(b"", [4], 0), "name of tensor 0"),
    "name with a line feed": (raw_tensor(b"a\nb", [4], 0), "is not a name"),
    "name not UTF-8": (raw_tensor(b"a\xff", [4], 0), "is not valid UTF-8"),
    "longer than the file": (raw_tensor(b"a", [2**40], 0), "needs 4398046511104 bytes"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_tensor_entries_are_distrusted(tmp_path: Path, name: str) -> None:
    raw, match = BAD_TENSORS[name]
    refused(tmp_path, raw, match)


def test_names_are_there_once(tmp_path: Path) -> None:
    refused(tmp_path, two(f32("a", [4]), f32("a", [4])), "tensor 1 .*'a' is there twice")
    refused(tmp_path, gguf_bytes([("k", 1), ("k", 1)]), "key 1 at offset .*'k' is there twice")


BAD_VALUES: dict[str, tuple[list[tuple[str | bytes, Any]], str]] = {
    "key not UTF-8": ([(b"k\xff", 1)], "is not valid UTF-8"),
    "empty key": ([(b"", 1)], "key 0"),
    "value not UTF-8": ([("k", b"\xc3\x28")], "value of k .*is not valid UTF-8"),
    "nested array": ([("k", Typed(ARRAY, [], ARRAY))], "nested arrays"),
    "boolean of 2": ([("k", Typed(BOOL, 2))], "boolean of 2"),
    "booleans of 3": ([("k", Typed(ARRAY, [1, 3], BOOL))], "boolean"),
    "alignment 0": ([("general.alignment", 0)], "general.alignment"),
    "alignment 3": ([("general.alignment", 3)], "general.alignment"),
    "alignment 2^31": ([("general.alignment", 1 << 31)], "general.alignment"),
    "alignment a string": ([("general.alignment", "32")], "general.alignment"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_keys_and_values_are_distrusted(tmp_path: Path, name: str) -> None:
    pairs, match = BAD_VALUES[name]
    refused(tmp_path, gguf_bytes(pairs, [f32("a", [4])]), match)


@pytest.mark.parametrize("kind", [13, 255, 2**32 - 1])
def test_wrong_type_codes(tmp_path: Path, kind: int) -> None:
    refused(tmp_path, head(0, 1) + KEY + struct.pack("<IQ", kind, 0), f"{kind} is not a GGUF value")
    inner = head(0, 1) + KEY + struct.pack("<IIQ", 9, kind, 0)
    refused(tmp_path, inner, f"{kind} is not a GGUF value")


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    tensor = TensorBytes("a", [4], 0, bytes(range(16)))
    source = opened(tmp_path, gguf_bytes({"general.alignment": 4096}, [tensor], alignment=4096))
    assert source.tensors["a"].offset == 4096
    assert source.read("a") == bytes(range(16))


# What a vocabulary's keys may hold wrongly: the accessors name the key.
SCORES, TYPES = "tokenizer.ggml.scores", "tokenizer.ggml.token_type"


def test_tokenizer_arrays_of_a_wrong_type(tmp_path: Path) -> None:
    raw = gguf_bytes(
        {
            SCORES: Typed(ARRAY, [1, 2], U8),
            TYPES: Typed(ARRAY, [1, 2], U16),
            "tokenizer.ggml.tokens": ["a", b"\xff"],
            "tokenizer.ggml.eos_token_id": Typed(U32, 2**32 - 1),
            "tokenizer.ggml.bos_token_id": Typed(I32, -1),
            "tokenizer.chat_template": ["x"],
            "llama.block_count": "2",
            "list": Typed(ARRAY, [1.0, float("nan")], F32),
        }
    )
    keys = opened(tmp_path, raw).metadata
    with pytest.raises(ModelFileError, match=SCORES):
        keys.numbers(SCORES)
    assert keys.integers(TYPES, minimum=1, maximum=6) == [1, 2]  # narrower, and in range
    with pytest.raises(ModelFileError, match=f"{TYPES}.*above 1"):
        keys.integers(TYPES, maximum=1)
    with pytest.raises(ModelFileError, match=r"tokens\[1\].*UTF-8"):
        keys.strings("tokenizer.ggml.tokens")
    assert next(keys.each_string("tokenizer.ggml.tokens")) == "a"
    with pytest.raises(ModelFileError, match=r"eos_token_id.*4294967295"):
        keys.integer("tokenizer.ggml.eos_token_id", maximum=1)
    with pytest.raises(ModelFileError, match=r"bos_token_id.*-1"):
        keys.integer("tokenizer.ggml.bos_token_id", minimum=0)
    with pytest.raises(ModelFileError, match=r"chat_template.*must be a string"):
        keys.string("tokenizer.chat_template")
    with pytest.raises(ModelFileError, match=r"block_count.*must be an integer"):
        keys.integer("llama.block_count")
    with pytest.raises(ModelFileError, match=r"llama\.context_length: is missing"):
        keys.integer("llama.context_length")
    with pytest.raises(ModelFileError, match=r"list\[1\].*finite"):
        keys.numbers("list")
