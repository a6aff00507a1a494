"""Models in several GGUF files: opened by any of them, faults named by the file they are in."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf_bytes import U16, TensorBytes, Typed, gguf_bytes
from tiny_model import gguf_pairs, write_gguf

from insitu.models.load import load_model
from insitu.weights.errors import ModelFileError
from insitu.weights.gguf import GGUFFile
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path


def f32(name: str, first: float) -> TensorBytes:
    return TensorBytes(name, [4], 0, np.full(4, first, np.float32).tobytes())


def write_parts(folder: Path, names: list[list[str]], **keys: int) -> list[Path]:
    """A file a list of tensors; a tensor holds the number that its name ends with."""
    paths = []
    for number, tensors in enumerate(names):
        path = folder / f"m-{number + 1:05}-of-{len(names):05}.gguf"
        pairs = {"split.no": Typed(U16, number), "split.count": Typed(U16, len(names))}
        more = {"split.tensors.count": sum(map(len, names)), "mine": number, **keys}
        body = [f32(name, float(name[-1])) for name in tensors]
        path.write_bytes(gguf_bytes({**pairs, **more}, body))
        paths.append(path)
    return paths


def test_any_file_or_the_folder_opens_them_all(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a1"], ["a2", "a3"], ["a4"]])
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    for path in (*paths, tmp_path):
        source = open_source(path)
        assert list(source.tensors) == ["a1", "a2", "a3", "a4"]
        for name in source.tensors:
            assert np.frombuffer(source.read(name), np.float32)[0] == float(name[-1])
        assert source.metadata.integer("mine") == 0  # the first file's
        assert source.size_bytes == sum(one.stat().st_size for one in paths)
        assert source.file("config.json") is None
        joined = "".join(f"{digest}\n" for digest in digests)
        assert source.digest() == hashlib.sha256(joined.encode()).hexdigest()
        with pytest.raises(ModelFileError, match=r"tensor a9.*missing"):
            source.read("a9")
        source.close()


def test_the_order_in_which_a_folder_is_listed_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_parts(tmp_path, [["a1"], ["a2"], ["a3"]])
    listed = os.listdir
    for backwards in (False, True):
        monkeypatch.setattr(
            os, "listdir", lambda path, b=backwards: sorted(listed(path), reverse=b)
        )
        source = open_source(tmp_path)
        assert list(source.tensors) == ["a1", "a2", "a3"]
        source.close()


def test_what_does_not_belong_together_is_refused(tmp_path: Path) -> None:
    paths = write_parts(tmp_path, [["a1"], ["a2"], ["a3"]])
    second = paths[1].read_bytes()
    paths[1].unlink()
    for path in (paths[0], paths[2], tmp_path):
        with pytest.raises(ModelFileError, match=r"m-00002-of-00003.gguf is not here"):
            open_source(path)
    paths[1].write_bytes(paths[2].read_bytes())
    with pytest.raises(
        ModelFileError, match=r"m-00002-of-00003.gguf: key split.no: is file 3 of 3"
    ):
        open_source(paths[0])
    twice = {"split.no": Typed(U16, 1), "split.count": Typed(U16, 3)}
    paths[1].write_bytes(gguf_bytes(twice, [f32("a1", 2)]))
    with pytest.raises(ModelFileError, match=r"m-00002.*tensor a1: is in m-00001-of-00003.gguf"):
        open_source(tmp_path)
    paths[1].write_bytes(gguf_bytes(twice, [f32("b1", 2), f32("b2", 2)]))
    with pytest.raises(ModelFileError, match="is 3, but the files hold 4 tensors"):
        open_source(paths[0])
    paths[1].write_bytes(second)
    renamed = paths[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match=r"renamed.gguf.*NAME-00001-of-00003.gguf"):
        open_source(renamed)
    with pytest.raises(ModelFileError, match=r"holds 3 \.gguf files"):
        open_source(tmp_path)


def test_one_of_one_is_a_file(tmp_path: Path) -> None:
    (path,) = write_parts(tmp_path, [["a1"]])
    assert isinstance(open_source(path), GGUFFile)
    assert "a1" in open_source(tmp_path).tensors


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_head_in_the_last_file_is_used(tmp_path: Path, is_tied: bool) -> None:
    whole = tmp_path / "whole.gguf"
    shape = write_gguf(whole, tied=is_tied)
    source = GGUFFile(whole)
    pairs = gguf_pairs(shape)
    names = list(source.tensors)
    cut = len(names) // 2
    for number, part in enumerate((names[:cut], names[cut:])):
        tensors = []
        for name in part:
            info = source.tensors[name]
            kind = 0 if info.block_type == "F32" else 8
            tensors.append(
                TensorBytes(name, list(reversed(info.shape)), kind, bytes(source.read(name)))
            )
        mine = {"split.no": Typed(U16, number), "split.count": Typed(U16, 2)}
        path = tmp_path / f"m-{number + 1:05}-of-00002.gguf"
        path.write_bytes(gguf_bytes((pairs if number == 0 else {}) | mine, tensors))
    split = open_source(tmp_path / "m-00001-of-00002.gguf")
    one, other = load_model(source), load_model(split)
    assert ("output.weight" in names[cut:]) == (not is_tied)
    assert one.is_tied == other.is_tied == is_tied
    assert one.spec == other.spec
    assert [bytes(s.raw()) for li in one.linears for s in li.segments] == [
        bytes(s.raw()) for li in other.linears for s in li.segments
    ]
