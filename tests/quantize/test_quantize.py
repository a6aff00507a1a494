"""Files in fewer bits: as the report says, resumed or not, better the more is known."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from cli.test_cli import insitu
from quantize.stopping import stopped_at
from tiny_model import TinyShape, random_weights, write_gguf

from insitu.kernels.blocks import BlockType, decode
from insitu.quantize.errors import QuantizeError
from insitu.quantize.grids import fit
from insitu.quantize.layout import Types
from insitu.quantize.rounding import round_nearest, round_with_moments
from insitu.quantize.run import Wish, quantize
from insitu.weights.gguf import GGUFFile

if TYPE_CHECKING:
    from pathlib import Path

K, N = 512, 24
KINDS = ("Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0", "Q2_K")
SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_layers": 1}
SIZES |= {"num_heads": 16}
HEADS = ("token_embd.weight", "output.weight")


def silent(*_: object) -> None:
    """Watches nothing."""


def weights() -> np.ndarray:
    w = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)
    w[0] = 0
    return w


def inputs() -> np.ndarray:
    """Rows that go together, some columns far larger than others."""
    rng = np.random.default_rng(1)
    mixed = rng.standard_normal((2000, 64)) @ rng.standard_normal((64, K))
    return (mixed * np.exp(rng.standard_normal(K))).astype(np.float32)


@pytest.mark.parametrize("method", ["nearest", "scale", "gptq"])
@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (np.nan, "Q4_K", "not finite"),
        (np.inf, "F16", "not finite"),
        (1e9, "Q4_0", "holds 1e+09, too large for Q4_0"),
        (1e9, "F16", "holds 1e+09, too large for F16"),
        (1e9, "F32", None),
    ],
)
def test_what_no_block_can_hold_is_refused_by_its_tensor(
    tmp_path: Path, method: Any, number: float, kind: str, said: str | None
) -> None:
    shape = replace(TinyShape(), **SIZES)
    tensors = random_weights(shape)
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = number
    source, target = tmp_path / "source.gguf", tmp_path / "target.gguf"
    write_gguf(source, weights=tensors, block_types=BlockType.F32, **SIZES)
    wish = Wish(source, target, Types(BlockType(kind)), method, max_num_tokens=32)
    if said is None:
        quantize(wish, silent)
        return
    with pytest.raises(QuantizeError, match=re.escape(said)) as caught:
        quantize(wish, silent)
    assert "tensor blk.0.ffn_up.weight" in str(caught.value)
    assert not target.exists()


@pytest.mark.parametrize("method", ["scale", "gptq"])
def test_a_model_that_computes_no_numbers_is_refused_where_it_shows(
    tmp_path: Path, method: Any
) -> None:
    shape = replace(TinyShape(), **SIZES)
    tensors = random_weights(shape)
    tensors["model.layers.0.input_layernorm.weight"][:] = np.nan
    source = tmp_path / "source.gguf"
    write_gguf(source, weights=tensors, block_types=BlockType.F32, **SIZES)
    wish = Wish(source, tmp_path / "t.gguf", Types(BlockType.Q4_0), method, max_num_tokens=32)
    with pytest.raises(QuantizeError, match=r"attn_q\.weight: what reaches it .* not finite"):
        quantize(wish, silent)


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_holds_what_its_block_decodes_to(kind: str) -> None:
    block_type = BlockType(kind)
    rounded = round_nearest(block_type, weights(), np.ones(K, np.float32))
    assert rounded.blocks.shape == (N, block_type.row_bytes(K))
    assert np.array_equal(decode(block_type, rounded.blocks, N, K), rounded.weights)
    assert not rounded.weights[0].any()
    block = weights()[:, : block_type.block_size]
    grid = fit(block_type, block, np.ones(block_type.block_size, np.float32))
    q = grid.nearest(block, slice(None))
    near = np.abs(grid.values(q, slice(None)) - block)
    for other in (q - 1, q + 1):
        inside = (other >= grid.low) & (other <= grid.high)
        away = np.abs(grid.values(other, slice(None)) - block)
        assert (near <= away + 1e-6)[inside].all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_fitted_scales_beat_the_largest_weights(kind: str) -> None:
    from insitu.kernels.encode import encode

    block_type, w = BlockType(kind), weights()
    simple = decode(block_type, encode(block_type, w), N, K)
    fitted = round_nearest(block_type, w, np.ones(K, np.float32)).weights
    assert np.square(fitted - w).sum() < 0.97 * np.square(simple - w).sum()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K", "Q2_K"])
def test_outputs_move_less_the_more_is_known_of_inputs(kind: str) -> None:
    block_type, w, x = BlockType(kind), weights(), inputs()
    moments = x.T @ x
    ways = (
        round_nearest(block_type, w, np.ones(K, np.float32)),
        round_nearest(block_type, w, np.diag(moments)),
        round_with_moments(block_type, w, moments),
    )
    errors = [np.square(x @ (way.weights - w).T).sum() for way in ways]
    assert errors[1] < errors[0]
    assert errors[2] < 0.7 * errors[1]
    assert np.array_equal(decode(block_type, ways[2].blocks, N, K), ways[2].weights)


def test_inputs_that_never_move_do_no_harm() -> None:
    moments = np.zeros((K, K), np.float32)
    rounded = round_with_moments(BlockType.Q4_0, weights(), moments)
    assert np.isfinite(rounded.weights).all()


@pytest.mark.parametrize("method", ["nearest", "scale", "gptq"])
def test_a_file_is_written_whole_and_others_read_it(tmp_path: Path, method: str) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(source, block_types=BlockType.F32, pairs={"general.file_type": 0}, **SIZES)
    wish = Wish(source, target, Types(BlockType.Q4_K, BlockType.Q6_K), method, max_num_tokens=64)  # type: ignore[arg-type]
    report = quantize(wish, silent)
    assert sorted(tmp_path.iterdir()) == [source, target]
    before, after = GGUFFile(source), GGUFFile(target)
    kept = {key for key in before.metadata.keys() if key != "general.file_type"}  # noqa: SIM118
    assert kept < set(after.metadata.keys())
    assert after.metadata.strings("tokenizer.ggml.tokens") == before.metadata.strings(
        "tokenizer.ggml.tokens"
    )
    assert after.metadata.integer("general.file_type") == 14
    assert list(after.tensors) == list(before.tensors)
    by_name = {one.name: one for one in report.tensors}
    for name, info in after.tensors.items():
        if info.block_type is BlockType.F32:
            assert bytes(after.read(name)) == bytes(before.read(name))
            continue
        assert info.block_type == ("Q6_K" if name in HEADS else "Q4_K")
        n, k = info.shape
        own = decode(BlockType.F32, before.read(name), n, k)
        off = decode(info.block_type, after.read(name), n, k) - own
        error = np.sqrt(np.square(off).sum() / np.square(own).sum())
        assert by_name[name].error == pytest.approx(error, rel=1e-3)
        is_seen = method != "nearest" and name.startswith("blk.")
        assert (by_name[name].output_error is not None) == is_seen
    reader = gguf.GGUFReader(target)
    assert [tensor.name for tensor in reader.tensors] == list(before.tensors)
    assert report.size_bytes == target.stat().st_size


def test_a_stopped_run_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, whole, target = (tmp_path / f"{name}.gguf" for name in "abc")
    write_gguf(source, block_types=BlockType.F32, **SIZES)
    quantize(Wish(source, whole, Types(BlockType.Q4_0), max_num_tokens=64), silent)
    made = stopped_at(monkeypatch, 3)
    wish = Wish(source, target, Types(BlockType.Q4_0), max_num_tokens=64)
    with pytest.raises(KeyboardInterrupt):
        quantize(wish, silent)
    assert not target.exists()
    made.clear()
    made.extend(["", "", "", ""])
    quantize(wish, silent)
    assert len(made) == 4 + 7 - 3  # seven linears in a layer, three of them done before
    assert target.read_bytes() == whole.read_bytes()


def test_a_draft_of_another_run_is_not_gone_on_with(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(source, block_types=BlockType.F32, **SIZES)
    (tmp_path / "b.gguf.partial").write_bytes(b"other")
    journal = tmp_path / "b.gguf.partial.json"
    journal.write_text(json.dumps({"identity": {}, "done": {"output.weight": None}}))
    quantize(Wish(source, target, Types(BlockType.Q8_0), method="nearest"), silent)
    assert GGUFFile(target).tensors["output.weight"].block_type is BlockType.Q8_0


def test_a_draft_that_lost_its_end_is_begun_again(tmp_path: Path) -> None:
    source, whole, target = (tmp_path / f"{name}.gguf" for name in "abc")
    write_gguf(source, block_types=BlockType.F32)
    quantize(Wish(source, whole, Types(BlockType.Q8_0), method="nearest"), silent)
    wish = Wish(source, target, Types(BlockType.Q8_0), method="nearest")

    def stopping(_what: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(wish, stopping)
    draft = tmp_path / "c.gguf.partial"
    draft.write_bytes(draft.read_bytes()[:-1000])
    quantize(wish, silent)
    assert target.read_bytes() == whole.read_bytes()


def test_only_another_file_is_written_over(tmp_path: Path) -> None:
    source, link = tmp_path / "a.gguf", tmp_path / "link.gguf"
    folder, pipe = tmp_path / "folder", tmp_path / "pipe"
    write_gguf(source)
    link.symlink_to(source)
    folder.mkdir()
    os.mkfifo(pipe)
    before = source.read_bytes()
    for target, why in (
        (source, "the model itself"),
        (link, "the model itself"),
        (folder, "no file"),
        (pipe, "no file"),
    ):
        with pytest.raises(QuantizeError, match=why):
            quantize(Wish(source, target, Types(BlockType.Q4_0), method="nearest"), silent)
    assert source.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "a.gguf",
        "folder",
        "link.gguf",
        "pipe",
    ]


def test_narrow_rows_take_a_type_of_as_many_bits(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(source, block_types=BlockType.F32)
    quantize(Wish(source, target, Types(BlockType.Q4_K), method="nearest"), silent)
    kinds = {name: info.block_type for name, info in GGUFFile(target).tensors.items()}
    assert kinds["blk.0.attn_q.weight"] == "Q4_0"
    assert [kinds[name] for name in HEADS] == ["Q8_0", "Q8_0"]


def test_what_cannot_be_quantised_is_named(tmp_path: Path) -> None:
    source = tmp_path / "a.gguf"
    write_gguf(source)
    types = Types(BlockType.Q4_0, named=(("typo.*", BlockType.Q8_0),))
    with pytest.raises(QuantizeError, match=r"--tensor typo\.\*: no tensor has such a name"):
        quantize(Wish(source, tmp_path / "x.gguf", types), silent)
    with pytest.raises(QuantizeError, match="IQ4_XS: there is no method"):
        quantize(Wish(source, tmp_path / "x.gguf", Types(BlockType.IQ4_XS)), silent)


def test_the_verb_writes_and_reports(tmp_path: Path) -> None:
    source, target = tmp_path / "a.gguf", tmp_path / "b.gguf"
    write_gguf(source)
    done = insitu("quantize", source, target, "--type", "q4_0", "--tokens", "64")
    assert done.returncode == 0, done.stderr
    assert "blk.0.ffn_down.weight           Q4_0" in done.stdout
    assert "bits a weight" in done.stdout
    told = json.loads(
        insitu("quantize", source, target, "--type", "q8_0", "--method", "nearest", "--json").stdout
    )
    assert told["bits_per_weight"] == 8.5
    missing = insitu("quantize", source, tmp_path / "no" / "b.gguf", "--type", "q8_0")
    assert missing.returncode == 2
    assert "there is no folder" in missing.stderr
