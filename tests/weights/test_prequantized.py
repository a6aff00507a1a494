"""Checkpoints packed by AWQ, GPTQ and compressed-tensors: the numbers they stand for, no others.

Every checkpoint is packed here, by loops over single integers, from weights known beforehand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import safetensors.numpy
from tiny_model import TinyShape, config_of, random_weights, write_safetensors

from insitu.kernels.blocks import BlockType, decode
from insitu.models.load import load_model
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

N, K, GROUP = 48, 128, 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
Arrays = dict[str, Any]


class Quantised:
    """q, zero points and scales of one linear, and the weights they stand for."""

    def __init__(self, levels: int, *, points: int | None, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        groups = K // GROUP
        self.q = rng.integers(0, levels, (N, K))
        self.q[0, :2] = 0, levels - 1
        shape = (N, groups)
        self.z = rng.integers(1, 16, shape) if points is None else np.full(shape, points)
        self.s = rng.uniform(0.001, 0.02, shape).astype(np.float16)
        scale = np.repeat(self.s.astype(np.float32), GROUP, axis=1)
        less = (self.q - np.repeat(self.z, GROUP, axis=1)).astype(np.float32)
        self.weights = less * scale


def words(table: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """[rows, columns] to int32 [rows, columns * bits / 32]; field i of a word is ``order[i]``."""
    count = 32 // bits
    order = order or tuple(range(count))
    out = np.zeros((len(table), table.shape[1] // count), np.uint64)
    for row in range(len(table)):
        for word in range(out.shape[1]):
            for place, which in enumerate(order):
                field = int(table[row, word * count + which]) & ((1 << bits) - 1)
                out[row, word] |= np.uint64(field << (bits * place))
    return out.astype(np.uint32).view(np.int32)


def awq(x: Quantised) -> Arrays:
    return {
        "x.qweight": words(x.q.T, 4, AWQ_ORDER),
        "x.qzeros": words(x.z.T, 4, AWQ_ORDER),
        "x.scales": np.ascontiguousarray(x.s.T),
    }


def gptq(x: Quantised, bits: int = 4) -> Arrays:
    return {
        "x.qweight": np.ascontiguousarray(words(x.q, bits).T),
        "x.qzeros": words(x.z.T - 1, bits),
        "x.scales": np.ascontiguousarray(x.s.T),
        "x.g_idx": (np.arange(K) // GROUP).astype(np.int32),
    }


def compressed(x: Quantised, bits: int = 4, *, has_points: bool = False) -> Arrays:
    arrays = {
        "x.weight_packed": words(x.q, bits),
        "x.weight_scale": x.s,
        "x.weight_shape": np.array([N, K], np.int64),
    }
    if has_points:
        arrays["x.weight_zero_point"] = np.ascontiguousarray(words(x.z.T, bits).T)
    return arrays


def groups_of(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", **weights}}}}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}
PACKED = {"quant_method": "compressed-tensors", "format": "pack-quantized", **groups_of()}


def write(folder: Path, settings: dict[str, Any], arrays: Arrays) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings, "a": 1}))
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("settings", "make", "x", "kind"),
    [
        (AWQ, awq, Quantised(16, points=None), "Q5_0"),
        (AWQ, awq, Quantised(16, points=8), "Q4_0"),
        (GPTQ, gptq, Quantised(16, points=8), "Q4_0"),
        (GPTQ, gptq, Quantised(16, points=None), "Q5_0"),
        (GPTQ | {"bits": 8}, lambda x: gptq(x, 8), Quantised(256, points=128), "Q8_0"),
        (GPTQ | {"bits": 8}, lambda x: gptq(x, 8), Quantised(256, points=None), "F32"),
        (PACKED, compressed, Quantised(16, points=8), "Q4_0"),
        (PACKED, lambda x: compressed(x, has_points=True), Quantised(16, points=None), "Q5_0"),
        (
            PACKED | groups_of(num_bits=8),
            lambda x: compressed(x, 8),
            Quantised(256, points=128),
            "Q8_0",
        ),
    ],
)
def test_what_is_read_is_what_was_packed(
    tmp_path: Path, settings: dict[str, Any], make: Callable[..., Arrays], x: Quantised, kind: str
) -> None:
    bias = np.ones(N, np.float16)
    source = open_source(write(tmp_path, settings, make(x) | {"x.bias": bias}))
    assert set(source.tensors) == {"x.weight", "x.bias"}
    info = source.tensors["x.weight"]
    assert (info.block_type, info.shape) == (kind, (N, K))
    assert info.num_bytes == len(source.read("x.weight"))
    assert np.array_equal(decode(BlockType(kind), source.read("x.weight"), N, K), x.weights)
    assert list(source.metadata.keys()) == ["a"]
    assert source.size_bytes == (tmp_path / "model.safetensors").stat().st_size
    source.close()


def test_whole_bytes_with_one_scale_a_row(tmp_path: Path) -> None:
    q = np.random.default_rng(1).integers(-128, 128, (N, K)).astype(np.int8)
    scale = np.random.default_rng(2).uniform(0.001, 0.1, (N, 1)).astype(np.float16)
    settings = PACKED | {"format": "int-quantized"} | groups_of(num_bits=8)
    source = open_source(write(tmp_path, settings, {"x.weight": q, "x.weight_scale": scale}))
    assert source.tensors["x.weight"].block_type is BlockType.Q8_0
    got = decode(BlockType.Q8_0, source.read("x.weight"), N, K)
    assert np.array_equal(got, q.astype(np.float32) * scale.astype(np.float32))


def test_scales_that_a_half_cannot_hold_make_float_rows(tmp_path: Path) -> None:
    x = Quantised(16, points=8)
    arrays = compressed(x)
    arrays["x.weight_scale"] = x.s.astype(np.float32) * np.float32(1.0001)
    source = open_source(write(tmp_path, PACKED, arrays))
    assert source.tensors["x.weight"].block_type is BlockType.F32
    got = decode(BlockType.F32, source.read("x.weight"), N, K)
    scale = np.repeat(arrays["x.weight_scale"], GROUP, axis=1)
    assert np.array_equal(got, (x.q - 8).astype(np.float32) * scale)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"quant_method": "fp8"}, "'fp8' is not supported"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes' is not supported"),
        ({}, "quant_method"),
        (AWQ | {"bits": 3}, "bits.*is 3; 4 is supported"),
        (AWQ | {"version": "marlin"}, "'marlin' is not supported"),
        (AWQ | {"zero_point": False}, "zero_point"),
        (GPTQ | {"bits": 3}, "is 3; 4 or 8 is supported"),
        (GPTQ | {"checkpoint_format": "marlin"}, "'marlin' is not supported"),
        (PACKED | {"format": "float-quantized"}, "FP8 is not supported"),
        (PACKED | groups_of(type="float"), "'float' is not supported"),
        (PACKED | groups_of(num_bits=2), "is 2; 4 or 8"),
        (PACKED | {"config_groups": {}}, "0 widths"),
        (PACKED | {"config_groups": {"g": {}}}, "weights.*is missing"),
    ],
)
def test_what_is_not_understood_is_refused(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelFileError, match=said):
        open_source(write(tmp_path, settings, {"x.bias": np.ones(4, np.float16)}))


@pytest.mark.parametrize("points", [8, None])
@pytest.mark.parametrize("method", ["gptq", "compressed-tensors"])
def test_act_order_gives_each_input_the_scale_of_its_group(
    tmp_path: Path, method: str, points: int | None
) -> None:
    x = Quantised(16, points=points)
    index = np.random.default_rng(3).permutation(np.arange(K) // GROUP).astype(np.int32)
    if method == "gptq":
        settings, arrays = GPTQ | {"desc_act": True}, gptq(x) | {"x.g_idx": index}
    else:
        settings = PACKED | groups_of(actorder="group")
        arrays = compressed(x, has_points=points is None) | {"x.weight_g_idx": index}
    source = open_source(write(tmp_path, settings, arrays))
    assert source.tensors["x.weight"].block_type is BlockType.F32
    expected = (x.q - x.z[:, index]).astype(np.float32) * x.s.astype(np.float32)[:, index]
    assert np.array_equal(decode(BlockType.F32, source.read("x.weight"), N, K), expected)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        (np.full(K, 2), "names groups from 2 to 2, of 2"),
        (np.full(K, -1), "names groups from -1 to -1, of 2"),
        (np.zeros(K - 1), "has shape"),
    ],
)
def test_groups_that_are_not_there_are_refused(
    tmp_path: Path, index: np.ndarray, said: str
) -> None:
    arrays = gptq(Quantised(16, points=8)) | {"x.g_idx": index.astype(np.int32)}
    with pytest.raises(ModelFileError, match=said):
        open_source(write(tmp_path, GPTQ | {"desc_act": True}, arrays))


def _without(arrays: Arrays, name: str) -> Arrays:
    return {key: value for key, value in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        (_without(awq(Quantised(16, points=8)), "x.qzeros"), r"x\.qzeros: is missing"),
        (_without(awq(Quantised(16, points=8)), "x.scales"), r"x\.scales"),
        (awq(Quantised(16, points=8)) | {"x.scales": np.ones((2, 8), np.float16)}, "has shape"),
        (awq(Quantised(16, points=8)) | {"x.qzeros": np.ones((1, 6), np.int32)}, "has shape"),
        (awq(Quantised(16, points=8)) | {"x.qweight": np.ones(6, np.int32)}, "of 2 dimensions"),
        (awq(Quantised(16, points=8)) | {"x.more": np.ones(6, np.int32)}, "is not used by awq"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, arrays: Arrays, said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        open_source(write(tmp_path, AWQ, arrays))


SOUND = Quantised(16, points=None)
PACKINGS = {
    "awq": (AWQ, awq(SOUND)),
    "gptq": (GPTQ, gptq(SOUND)),
    "compressed": (PACKED, compressed(SOUND, has_points=True)),
}


@pytest.mark.parametrize("method", PACKINGS)
def test_tensors_without_numbers_are_named(tmp_path: Path, method: str) -> None:
    settings, arrays = PACKINGS[method]
    for name, array in arrays.items():
        for empty in (array[:0], array[..., :0], np.zeros((0,) * array.ndim, array.dtype)):
            folder = write(tmp_path, settings, arrays | {name: np.ascontiguousarray(empty)})
            with pytest.raises(ModelFileError, match=rf"tensor {name}.* has "):
                open_source(folder)


def test_weights_that_are_not_symmetric_need_zero_points(tmp_path: Path) -> None:
    settings, arrays = PACKED | groups_of(symmetric=False), compressed(SOUND, has_points=True)
    open_source(write(tmp_path, settings, arrays)).close()
    without = _without(arrays, "x.weight_zero_point")
    with pytest.raises(ModelFileError, match=r"x\.weight_zero_point: is missing"):
        open_source(write(tmp_path, settings, without))
    open_source(write(tmp_path, PACKED | groups_of(symmetric=True), without)).close()


def test_a_packed_model_loads_as_its_plain_twin(tmp_path: Path) -> None:
    shape, weights = TinyShape(intermediate_size=128), random_weights(TinyShape())
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    arrays: Arrays = {}
    for name, weight in list(weights.items()):
        if not name.endswith("_proj.weight"):
            arrays[name] = weight.astype(np.float32)
            continue
        n, k = weight.shape
        rng = np.random.default_rng(n + k)
        q, s = rng.integers(0, 16, (n, k)), rng.uniform(0.01, 0.02, (n, 1)).astype(np.float16)
        prefix = name.removesuffix(".weight")
        arrays |= {f"{prefix}.weight_packed": words(q, 4), f"{prefix}.weight_scale": s}
        arrays[f"{prefix}.weight_shape"] = np.array([n, k], np.int64)
        weights[name] = (q - 8).astype(np.float32) * s.astype(np.float32)
    write_safetensors(plain, weights=weights)
    write_safetensors(packed, config={"quantization_config": PACKED})
    safetensors.numpy.save_file(arrays, packed / "model.safetensors")
    assert config_of(shape, BlockType.F32)["hidden_size"] == 64
    one, other = (load_model(open_source(folder)) for folder in (plain, packed))
    types = {str(s.block_type) for li in other.linears for s in li.segments}
    assert types == {"Q4_0", "F32"}
    for left, right in zip(one.linears, other.linears, strict=True):
        for a, b in zip(left.segments, right.segments, strict=True):
            ours, theirs = (decode(s.block_type, s.raw(), s.n, s.k) for s in (a, b))
            assert np.array_equal(ours, theirs), a.name
