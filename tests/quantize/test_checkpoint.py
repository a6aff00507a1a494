"""Folders of safetensors, quantised: read again they hold the numbers that were chosen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
import safetensors.numpy
from cli.test_cli import insitu
from families.cases import CASES, weights, write_folder
from families.test_families import recorded
from quantize.stopping import stopped_at
from tiny_model import write_safetensors

from insitu.kernels.blocks import BlockType, decode
from insitu.models.load import load_model
from insitu.quantize.errors import QuantizeError
from insitu.quantize.layout import Types
from insitu.quantize.rounding import round_nearest
from insitu.quantize.run import Wish, quantize
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.weights.tensors import TensorSource

LAYER = "model.layers.0.self_attn.q_proj.weight"
HEAD = "lm_head.weight"


def silent(*_: object) -> None:
    """Watches nothing."""


def plain(source: TensorSource, name: str) -> np.ndarray:
    info = source.tensors[name]
    rows = int(np.prod(info.shape[:-1], dtype=int))
    return decode(info.block_type, source.read(name), rows, info.shape[-1])


@pytest.mark.parametrize(("kind", "num_bits"), [("Q4_0", 4), ("Q8_0", 8)])
def test_layers_become_packed_integers_and_all_else_stays(
    tmp_path: Path, kind: str, num_bits: int
) -> None:
    folder, target = tmp_path / "a", tmp_path / "b"
    write_safetensors(folder)
    report = quantize(Wish(folder, target, Types(BlockType(kind)), "nearest"), silent)
    before, after = open_source(folder), open_source(target)
    assert set(before.tensors) == set(after.tensors)
    assert {path.name for path in target.iterdir()} == {path.name for path in folder.iterdir()}
    for name, info in after.tensors.items():
        own = plain(before, name)
        if "_proj" not in name:
            assert info.block_type is BlockType.F32
            assert np.array_equal(plain(after, name), own)
            continue
        assert info.block_type == kind
        expected = round_nearest(BlockType(kind), own, np.ones(own.shape[1], np.float32))
        assert np.array_equal(plain(after, name), expected.weights)
    assert {one.name for one in report.tensors} == {
        name for name in after.tensors if "_proj" in name
    }
    assert report.size_bytes == (target / "model.safetensors").stat().st_size
    config = json.loads((target / "config.json").read_text())
    told = config.pop("quantization_config")
    assert config == json.loads((folder / "config.json").read_text())
    assert told["format"] == "pack-quantized"
    assert told["config_groups"]["group_0"]["weights"]["num_bits"] == num_bits
    assert {"lm_head", "model.embed_tokens"} == set(told["ignore"])
    load_model(after)


def test_words_hold_fields_as_compressed_tensors_lays_them_out(tmp_path: Path) -> None:
    folder, target = tmp_path / "a", tmp_path / "b"
    write_safetensors(folder)
    quantize(Wish(folder, target, Types(BlockType.Q4_0), "nearest"), silent)
    arrays = safetensors.numpy.load_file(target / "model.safetensors")
    words, scale = arrays[f"{LAYER}_packed"], arrays[f"{LAYER}_scale"].astype(np.float32)
    n, k = arrays[f"{LAYER}_shape"]
    assert words.dtype == np.int32
    assert words.shape == (n, k // 8)
    got = plain(open_source(target), LAYER)
    for row, column in ((0, 0), (3, 9), (n - 1, k - 1)):
        field = (int(words[row, column // 8]) >> (4 * (column % 8))) & 15
        assert got[row, column] == np.float32(field - 8) * scale[row, column // 32]


def test_floats_are_every_matrix(tmp_path: Path) -> None:
    folder, target = tmp_path / "a", tmp_path / "b"
    write_safetensors(folder)
    quantize(Wish(folder, target, Types(BlockType.F16)), silent)
    before, after = open_source(folder), open_source(target)
    for name, info in after.tensors.items():
        assert info.block_type == ("F16" if len(info.shape) == 2 else "F32")
        own = plain(before, name)
        expected = own.astype(np.float16).astype(np.float32) if len(info.shape) == 2 else own
        assert np.array_equal(plain(after, name), expected)
    assert "quantization_config" not in json.loads((target / "config.json").read_text())


def test_what_was_packed_is_packed_anew_or_floats(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    write_safetensors(folders[0])
    quantize(Wish(folders[0], folders[1], Types(BlockType.Q4_0), "nearest"), silent)
    quantize(Wish(folders[1], folders[2], Types(BlockType.F32)), silent)
    packed, wide = (open_source(folder) for folder in folders[1:])
    for name in packed.tensors:
        assert wide.tensors[name].block_type is BlockType.F32
        assert np.array_equal(plain(packed, name), plain(wide, name))


def test_a_stopped_run_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole, target = (tmp_path / name for name in "abc")
    write_safetensors(folder)
    types = Types(BlockType.Q4_0)
    quantize(Wish(folder, whole, types, max_num_tokens=64), silent)
    stopped_at(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        quantize(Wish(folder, target, types, max_num_tokens=64), silent)
    assert not (target / "model.safetensors").exists()
    monkeypatch.undo()
    quantize(Wish(folder, target, types, max_num_tokens=64), silent)
    for path in whole.iterdir():
        assert (target / path.name).read_bytes() == path.read_bytes()
    assert len(list(target.iterdir())) == len(list(whole.iterdir()))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("mixtral", ("block_sparse_moe.gate.", "embed_tokens", "lm_head")),
        ("qwen2-moe", ("mlp.gate.", "shared_expert_gate", "embed_tokens", "lm_head")),
        ("phi3", ("embed_tokens", "lm_head")),
    ],
)
def test_only_what_loads_as_blocks_is_quantised(
    tmp_path: Path, name: str, kept: tuple[str, ...]
) -> None:
    folder, target = tmp_path / "a", tmp_path / "b"
    write_folder(folder, CASES[name].config_json(), weights(recorded(name)["shapes"]))
    quantize(Wish(folder, target, Types(BlockType.Q8_0), "nearest"), silent)
    after = open_source(target)
    load_model(after, CASES[name].max_model_len)
    for tensor, info in after.tensors.items():
        is_matrix = len(info.shape) == 2 and info.shape[1] % 32 == 0
        is_packed = is_matrix and not any(part in tensor for part in kept)
        assert (info.block_type == "Q8_0") == is_packed, tensor


def test_what_a_folder_cannot_be_is_refused(tmp_path: Path) -> None:
    folder, other = tmp_path / "a", tmp_path / "other"
    write_safetensors(folder)
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    new, four = tmp_path / "b", Types(BlockType.Q4_0)
    for target, types, said in (
        (other, four, "is not empty"),
        (folder, four, "is not empty"),
        (tmp_path / "file", four, "is no folder"),
        (new, Types(BlockType.Q4_K), "--type q4_k: a folder of safetensors holds q4_0, q8_0, f32"),
        (new, Types(BlockType.Q4_0, BlockType.Q8_0), "--head-type q8_0: .* one width"),
        (new, Types(BlockType.Q4_0, named=((LAYER, BlockType.Q8_0),)), "--tensor .* one width"),
        (new, Types(BlockType.Q4_0, named=(("typo.*", BlockType.F32),)), "--tensor .* such a name"),
    ):
        with pytest.raises(QuantizeError, match=said):
            quantize(Wish(folder, target, types, "nearest"), silent)
    assert not new.exists()
    assert (other / "notes.txt").read_text() == "mine"


def test_tensors_that_hold_their_inputs_first_are_refused(tmp_path: Path) -> None:
    folder, case = tmp_path / "a", CASES["gpt2"]
    write_folder(folder, case.config_json(), weights(recorded("gpt2")["shapes"]))
    with pytest.raises(QuantizeError, match="no tensor of it can be Q8_0"):
        quantize(Wish(folder, tmp_path / "b", Types(BlockType.Q8_0), "nearest"), silent)


def test_the_verb_makes_a_folder_that_runs(tmp_path: Path) -> None:
    folder, target = tmp_path / "a", tmp_path / "b"
    write_safetensors(folder)
    options = ("--type", "q4_0", "--tokens", "64", "--tensor", "*.down_proj.weight=f16")
    done = insitu("quantize", folder, target, *options)
    assert done.returncode == 0, done.stderr
    assert f"{LAYER}  Q4_0" in done.stdout
    types = {name: info.block_type for name, info in open_source(target).tensors.items()}
    assert types["model.layers.0.mlp.down_proj.weight"] == "F16"
    assert insitu("generate", target, "hello", "--max-tokens", "2").returncode == 0
    bad = insitu("quantize", folder, tmp_path / "c", "--type", "q4_0", "--tensor", "x=q9")
    assert bad.returncode == 2
    assert "PATTERN=TYPE" in bad.stderr
