"""safetensors: what is read agrees with the format's own package; every fault is named, quickly."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors
import safetensors.numpy
from tiny_model import write_gguf, write_safetensors

from insitu.codec.tokenizer import load_tokenizer
from insitu.kernels.blocks import BlockType
from insitu.models.load import load_model
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.safetensors import SafetensorsFile
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def file_of(header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header; ``length`` is what it says of the header's size."""
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    """One tensor's header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def refused(tmp_path: Path, raw: bytes, match: str) -> ModelFileError:
    """Refuse these bytes quickly, within 16 MB, with an error that says ``match``."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(ModelFileError, match=match) as caught:
        SafetensorsFile(path)
    elapsed_s = time.process_time() - start
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert elapsed_s < 0.5
    assert peak_bytes < 16 << 20
    return caught.value


def opened(tmp_path: Path, raw: bytes) -> SafetensorsFile:
    """Open these bytes as a lone file."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    return SafetensorsFile(path)


def test_agrees_with_the_safetensors_package(tmp_path: Path) -> None:
    grid, ones = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(5, np.float16)
    arrays: dict[str, npt.NDArray[Any]] = {"b": grid, "a": ones}
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    source = open_source(path)
    assert source.format == "safetensors"
    for name, array in arrays.items():
        info = source.tensors[name]
        assert info.shape == array.shape
        assert source.read(name) == array.tobytes()
        assert source.read(name).readonly
    assert source.file("config.json") is None


@pytest.mark.parametrize("dtype", [BlockType.F32, BlockType.F16, BlockType.BF16])
def test_the_twin_holds_the_gguf_s_weights(tmp_path: Path, dtype: BlockType) -> None:
    write_gguf(tmp_path / "m.gguf", architecture="qwen2", block_types=dtype)
    write_safetensors(tmp_path / "twin", architecture="qwen2", dtype=dtype)
    ours, twin = open_source(tmp_path / "m.gguf"), open_source(tmp_path / "twin")
    assert twin.metadata.integer("hidden_size") == 64
    assert not twin.metadata.has("rope_scaling")  # null counts as absent
    assert twin.read("model.layers.1.mlp.up_proj.weight") == ours.read("blk.1.ffn_up.weight")
    assert twin.read("model.embed_tokens.weight") == ours.read("token_embd.weight")
    assert json.loads(twin.file("tokenizer.json") or b"")["model"]["type"] == "BPE"
    assert twin.file("absent.json") is None
    with safetensors.safe_open(tmp_path / "twin" / "model.safetensors", "np") as theirs:
        assert set(theirs.keys()) == set(twin.tensors)


A16 = bytes(16)
COVER = {
    "alias": ({"a": entry([4], [0, 16]), "b": entry([4], [0, 16])}, A16, "overlaps"),
    "hole": ({"a": entry([1], [0, 4]), "b": entry([2], [8, 16])}, A16, "leaves a hole"),
    "uncovered": ({"a": entry([3], [0, 12])}, A16, "tensors end at"),
    "begin > end": ({"a": entry([4], [16, 0])}, A16, "begin and an end"),
    "past the end": ({"a": entry([8], [0, 32])}, A16, "tensors end at"),
}


@pytest.mark.parametrize("name", COVER)
def test_tensors_cover_the_data_once(tmp_path: Path, name: str) -> None:
    header, data, match = COVER[name]
    refused(tmp_path, file_of(header, data), match)


def test_order_of_entries_and_empty_tensors_are_free(tmp_path: Path) -> None:
    header = {"b": entry([2], [8, 16]), "a": entry([2], [0, 8]), "none": entry([0], [0, 0])}
    source = opened(tmp_path, file_of(header, bytes(range(16))))
    assert source.read("a") == bytes(range(8))
    assert bytes(source.read("none")) == b""
    padded = json.dumps({"a": entry([4], [0, 16])}).encode() + b" " * 100
    assert opened(tmp_path, file_of(padded, A16)).tensors["a"].offset == 8 + len(padded)


HEADERS = {
    "shape over offsets": (file_of({"a": entry([3000, 3000], [0, 16])}, A16), "take 36000000"),
    "wraps to 16": (file_of({"a": entry([4611686018427387905, 4], [0, 16])}, A16), "span 16 bytes"),
    "0 through a double": (
        file_of({"a": entry([4611686018427387905, 4], [0, 0])}),
        "span 0 bytes",
    ),
    "wraps to 0": (file_of({"a": entry([4611686018427387904, 4], [0, 0])}), "span 0 bytes"),
    "length 2^63": (file_of(b"{}", b"", 2**63), "header length"),
    "length 10^9": (file_of(b"{}", b"", 10**9), "header length"),
    "length of file + 1": (file_of(b"{}", b"", 11), "header length"),
    "length 0": (file_of(b"", A16), "not a JSON object"),
    "too short": (b"\x02\0\0", "header length"),
    "a list": (file_of(b"[]"), "not a JSON object"),
    "a number": (file_of(b'{"a":1}'), "must have dtype, shape and data_offsets"),
    "dtype F99": (file_of({"a": entry([4], [0, 16], "F99")}, A16), "'F99' is not a dtype"),
    "dtype a list": (file_of({"a": entry([4], [0, 16], ["F32"])}, A16), "is not a dtype"),
    "three offsets": (file_of({"a": entry([4], [0, 8, 16])}, A16), "data_offsets of tensor a"),
    "offset 1.5": (file_of({"a": entry([4], [0, 1.5])}, A16), "data_offsets of tensor a"),
    "offset a string": (file_of({"a": entry([4], ["0", 16])}, A16), "data_offsets of tensor a"),
    "offset true": (file_of({"a": entry([0], [False, 0])}), "data_offsets of tensor a"),
    "negative": (file_of({"a": entry([-4], [0, 16])}, A16), "shape of tensor a"),
    "nine dimensions": (file_of({"a": entry([1] * 9, [0, 4])}, A16), "shape of tensor a"),
    "huge number": (file_of(b'{"a":' + b"9" * 5000 + b"}"), "is not JSON"),
    "twice": (
        file_of(b'{"a":%b,"a":%b}' % ((json.dumps(entry([4], [0, 16])).encode(),) * 2), A16),
        "'a' is there twice",
    ),
    "not UTF-8": (file_of(b'{"\xff":1}'), "not valid UTF-8"),
    "NaN": (file_of(b'{"a":NaN}'), "NaN is not a number"),
    "cut": (file_of(b'{"a":'), "is not JSON"),
    "deep": (file_of(b'{"a":' + b"[" * 60_000), "is"),
    "surrogate": (file_of({"\ud83d": entry([4], [0, 16])}, A16), "is not a name"),
    "metadata": (file_of({"__metadata__": {"a": 1}}), "__metadata__ is not"),
    "more keys": (file_of({"a": {**entry([4], [0, 16]), "x": 1}}, A16), "nothing else"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_the_header_is_distrusted(tmp_path: Path, name: str) -> None:
    raw, match = HEADERS[name]
    refused(tmp_path, raw, match)


@pytest.mark.parametrize("num_entries", [40_000, 1_000_000])
def test_a_million_tiny_entries(tmp_path: Path, num_entries: int) -> None:
    tiny = '"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    header = "{" + ",".join(tiny % index for index in range(num_entries)) + "}"
    refused(tmp_path, file_of(header.encode()), "header")


def test_dtypes_without_a_kernel_are_refused_by_name(tmp_path: Path) -> None:
    raw = file_of({"ids": entry([2], [0, 16], "I64")}, A16)
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
    with pytest.raises(UnsupportedModelError, match="dtype of tensor ids: I64 is not supported"):
        open_source(path)


@pytest.mark.parametrize(
    "shard", ["x.safetensors", "../secret.safetensors", "/etc/hostname", "sub/../../x", "a\0b"]
)
def test_an_index_leads_to_plain_files_of_the_folder_only(tmp_path: Path, shard: str) -> None:
    index = {"weight_map": {"model.norm.weight": shard}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=r"cannot be opened|is not a plain file name"):
        open_source(tmp_path)


def test_a_link_of_the_index_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_shards(folder, [{"a": np.zeros(2, np.float32)}])
    (folder / "s0.safetensors").rename(tmp_path / "outside")
    (folder / "s0.safetensors").symlink_to(tmp_path / "outside")
    with pytest.raises(ModelFileError, match="leaves the model folder"):
        open_source(folder)


def write_shards(folder: Path, shards: list[dict[str, npt.NDArray[np.float32]]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    names = {name: f"s{i}.safetensors" for i, shard in enumerate(shards) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    for i, shard in enumerate(shards):
        safetensors.numpy.save_file(shard, folder / f"s{i}.safetensors")


def test_shards_are_read_as_one(tmp_path: Path) -> None:
    a, b = np.arange(4, dtype=np.float32), np.ones((2, 3), np.float32)
    write_shards(tmp_path, [{"a": a}, {"b": b}])
    source = open_source(tmp_path)
    assert np.array_equal(np.frombuffer(source.read("a"), np.float32), a)
    assert source.tensors["b"].shape == (2, 3)
    assert np.array_equal(np.frombuffer(source.read("b"), np.float32), b.reshape(-1))
    files = [tmp_path / f"s{i}.safetensors" for i in (0, 1)]
    assert source.size_bytes == sum(file.stat().st_size for file in files)
    lines = [hashlib.sha256(file.read_bytes()).hexdigest() + "\n" for file in files]
    assert source.digest() == hashlib.sha256("".join(lines).encode()).hexdigest()
    source.close()
    safetensors.numpy.save_file({"a": a}, files[1])
    with pytest.raises(ModelFileError, match=r"s1\.safetensors: tensor a: is in s0\.safetensors"):
        open_source(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 1}])
def test_an_index_that_says_nothing_is_refused(tmp_path: Path, weight_map: object) -> None:
    (tmp_path / "config.json").write_text("{}")
    text = json.dumps({"weight_map": weight_map})
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ModelFileError, match="weight_map"):
        open_source(tmp_path)


def _fifo(path: Path, _: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path, _: Path) -> None:
    path.symlink_to(path)


def _outside(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def _device(path: Path, _: Path) -> None:
    path.symlink_to("/dev/zero")


def _climbing(path: Path, outside: Path) -> None:
    path.symlink_to(f"../{outside.name}")


def _folder(path: Path, _: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [_fifo, _loop, _outside, _device, _climbing, _folder])
@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    ],
)
def test_members_are_regular_files_inside_the_folder(
    tmp_path: Path, make: Callable[[Path, Path], None], name: str
) -> None:
    folder, outside = tmp_path / "model", tmp_path / "secret"
    write_safetensors(folder)
    (folder / "chat_template.jinja").write_text("x")
    outside.write_bytes((folder / name).read_bytes())
    (folder / name).unlink()
    make(folder / name, outside)
    with pytest.raises(ModelFileError, match=name):
        open_source(folder).file(name)


@pytest.mark.parametrize("make", [_fifo, _loop, _outside, _device, _climbing, _folder])
def test_files_of_an_index_are_regular_files_inside_the_folder(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    folder, outside = tmp_path / "model", tmp_path / "secret"
    write_shards(folder, [{"a": np.zeros(2, np.float32)}, {"b": np.zeros(2, np.float32)}])
    (folder / "s1.safetensors").rename(outside)
    make(folder / "s1.safetensors", outside)
    with pytest.raises(ModelFileError, match=r"s1\.safetensors"):
        open_source(folder)


def test_a_hub_cache_s_links_are_allowed_and_no_others(tmp_path: Path) -> None:
    snapshot, blobs = (
        tmp_path / "models--x" / "snapshots" / "main",
        tmp_path / "models--x" / "blobs",
    )
    write_safetensors(snapshot)
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    source = open_source(snapshot)
    assert source.file("tokenizer.json")
    source.close()
    other = tmp_path / "models--y" / "blobs"
    other.mkdir(parents=True)
    (blobs / "config.json").rename(other / "config.json")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(other / "config.json")
    with pytest.raises(ModelFileError, match="leaves the model folder"):
        open_source(snapshot)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/../../x", "a\0b", "..", ""])
def test_only_plain_names_are_files_of_a_folder(tmp_path: Path, name: str) -> None:
    write_safetensors(tmp_path / "model")
    (tmp_path / "secret").write_text("x")
    source = open_source(tmp_path / "model")
    with pytest.raises(ModelFileError, match="not a plain file name"):
        source.file(name)


@pytest.mark.parametrize(
    "config", [b"[]", b"{", b'{"a":1,"a":2}', b'{"a":Infinity}', b"\xff", b" " * (2 << 20), b"{}\0"]
)
def test_config_json_is_read_strictly(tmp_path: Path, config: bytes) -> None:
    write_safetensors(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_bytes(config)
    with pytest.raises(ModelFileError, match=r"config\.json"):
        open_source(tmp_path / "model")


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"ab",'])
def test_a_member_that_would_become_large_objects_is_refused_before(
    tmp_path: Path, part: bytes
) -> None:
    write_safetensors(tmp_path / "model")
    with (tmp_path / "model" / "tokenizer.json").open("wb") as file:
        file.write(b'{"a":[' + part * ((40 << 20) // len(part)) + b"0]}")
    source = open_source(tmp_path / "model")
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: holds more than"):
        load_tokenizer(source)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 128 << 20


def test_what_is_no_model_of_either_format_says_what_to_do(tmp_path: Path) -> None:
    folder, lone = tmp_path / "model", tmp_path / "pytorch_model.bin"
    folder.mkdir()
    with pytest.raises(ModelFileError, match=r"holds no \.gguf file and no model\.safetensors$"):
        open_source(folder)
    for path in (folder / "pytorch_model.bin", lone):
        path.write_bytes(b"PK\3\4" + bytes(100))
    with pytest.raises(ModelFileError, match=r"only pytorch_model\.bin; pickles are never opened"):
        open_source(folder)
    with pytest.raises(ModelFileError, match="neither GGUF nor safetensors; pickles are never"):
        open_source(lone)
    lone.write_bytes(b"")
    with pytest.raises(ModelFileError, match="file: is empty"):
        open_source(lone)
    write_safetensors(tmp_path / "whole")
    alone = (tmp_path / "whole" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    with pytest.raises(ModelFileError, match=r"config\.json: is not beside the weights"):
        load_model(open_source(alone))
    write_gguf(tmp_path / "whole" / "model.safetensors")
    with pytest.raises(ModelFileError, match="is a GGUF file, not safetensors"):
        open_source(tmp_path / "whole")


def test_a_file_beside_its_config_is_opened_with_it(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model")
    source = open_source(tmp_path / "model" / "model.safetensors")
    assert source.metadata.integer("hidden_size") == 64
    assert source.file("tokenizer.json")
