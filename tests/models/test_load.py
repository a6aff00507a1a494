"""Model files become Programs, both formats alike; what is not implemented is refused by name."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kernels.tiny_operators import one_sequence
from tiny_model import TinyShape, random_weights, write_gguf, write_safetensors

from insitu.kernels.blocks import BlockType
from insitu.kernels.reference import Reference
from insitu.models import families
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.models.spec import RopeSpec
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

ARCHITECTURES = ["llama", "qwen2"]


def load(path: Path) -> LoadedModel:
    return load_model(open_source(path))


def load_gguf(folder: Path, **more: Any) -> LoadedModel:
    path = folder / "tiny.gguf"
    write_gguf(path, **{"block_types": BlockType.F32, **more})
    return load(path)


def load_folder(folder: Path, **more: Any) -> LoadedModel:
    write_safetensors(folder / "tiny", **more)
    return load(folder / "tiny")


def logits(model: LoadedModel, num_tokens: int = 20) -> npt.NDArray[np.float32]:
    kv = kv_layout(model.spec, block_size=16, dtype="f32")
    return Reference(model.program, kv).run(one_sequence(num_tokens, 16))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_gguf_and_its_safetensors_twin_are_one_model(
    tmp_path: Path, architecture: str, tied: bool
) -> None:
    # A llama GGUF has q and k permuted and rope over neighbours; the twin neither.
    more = {"architecture": architecture, "tied": tied}
    one, two = load_gguf(tmp_path, **more), load_folder(tmp_path, **more)
    assert one.is_tied == two.is_tied == tied
    assert np.allclose(logits(one), logits(two), atol=1e-4)
    assert logits(one).std() > 0.1
    layers = [replace(layer, rope=two.spec.ropes[0]) for layer in one.spec.layers]
    assert replace(one.spec, layers=tuple(layers)) == two.spec


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_spec_is_the_files(tmp_path: Path, architecture: str) -> None:
    shape = replace(TinyShape(), architecture=architecture)
    spec = load_gguf(tmp_path, architecture=architecture).spec
    for name in ("hidden_size", "num_layers"):
        assert getattr(spec, name) == getattr(shape, name), name
    for name in ("num_heads", "num_kv_heads", "head_dim"):
        assert getattr(spec.attention, name) == getattr(shape, name), name
    assert spec.vocab_size == len(shape.vocabulary)
    assert spec.ropes[0].pairing == ("adjacent" if architecture == "llama" else "halves")


def test_biases_matter_where_the_family_has_them(tmp_path: Path) -> None:
    shape = replace(TinyShape(), architecture="qwen2")
    weights = random_weights(shape)
    plain = logits(load_gguf(tmp_path, architecture="qwen2", weights=weights))
    for name in weights:
        if name.endswith("v_proj.bias"):
            weights[name] += 1
    assert not np.allclose(
        plain, logits(load_gguf(tmp_path, architecture="qwen2", weights=weights)), atol=1e-2
    )


def test_storage_says_how_each_group_is_stored(tmp_path: Path) -> None:
    types = {"attn_q": BlockType.Q4_0, "attn_v": BlockType.Q8_0, "token_embd": BlockType.Q4_1}
    model = load_gguf(tmp_path, block_types=types, tied=True)
    stored = {(group.name, group.block_type): group for group in model.storage}
    assert {kind for name, kind in stored if name == "qkv"} == {BlockType.Q4_0, BlockType.Q8_0}
    assert not [name for name, _ in stored if name == "lm_head"]
    embedding = stored["token_embedding", BlockType.Q4_1]
    assert embedding.size_bytes * 32 == embedding.num_weights * 20
    total = sum(linear.n * linear.k for linear in model.linears)
    assert total == sum(group.num_weights for group in model.storage)


def angles(model: LoadedModel) -> npt.NDArray[np.float64]:
    """Inverse frequencies, as the recorded operator has them."""
    (op,) = [op for op in model.program.ops if op.kind == "rope_angles"]
    dim = op.attributes["dim"]
    steps = np.float64(op.attributes["theta"]) ** (-2 * np.arange(dim // 2) / dim)
    return np.asarray(steps / (op.attributes["divisors"] or 1))


LINEAR = {"rope_type": "linear", "factor": 4}


@pytest.mark.parametrize(
    ("config", "theta", "factor"),
    [
        ({"rope_theta": 1e6}, 1e6, 1),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6}}, 1e6, 1),
        ({"rope_theta": None, "rope_parameters": {"rope_theta": 1e6, **LINEAR}}, 1e6, 4),
        ({"rope_theta": 1e4, "rope_scaling": None}, 1e4, 1),
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4}}, 1e4, 4),
        ({"rope_theta": 1e4, "rope_scaling": LINEAR}, 1e4, 4),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default"}}, 1e4, 1),
        ({"rope_theta": None}, 1e4, 1),
    ],
)
def test_every_spelling_of_rope_means_the_same(
    tmp_path: Path, config: dict[str, Any], theta: float, factor: float
) -> None:
    model = load_folder(tmp_path, config=config)
    dim = model.spec.attention.head_dim
    expected = theta ** (-2 * np.arange(dim // 2) / dim) / factor
    assert np.allclose(angles(model), expected, rtol=1e-6, atol=0)


def test_gguf_rope_keys_mean_the_same(tmp_path: Path) -> None:
    prefix = "llama.rope."
    keys = {f"{prefix}scaling.type": "linear", f"{prefix}scaling.factor": 4.0}
    scaled = load_gguf(tmp_path, pairs={f"{prefix}freq_base": 1e6, **keys})
    assert scaled.spec.ropes == (RopeSpec(1e6, 16, "adjacent", (4.0,) * 8, 1.0, "linear 4"),)
    old = load_gguf(tmp_path, pairs={f"{prefix}freq_base": 1e6, f"{prefix}scale_linear": 4.0})
    assert old.spec.ropes == scaled.spec.ropes
    plain = load_gguf(tmp_path, pairs={f"{prefix}scaling.type": "none"})
    assert plain.spec.ropes[0].divisors == ()
    assert not np.allclose(logits(scaled), logits(plain), atol=1e-3)


def test_theta_moves_the_logits_however_it_is_spelt(tmp_path: Path) -> None:
    low = logits(load_folder(tmp_path, config={"rope_theta": 1e4}))
    high = logits(load_folder(tmp_path, config={"rope_theta": 1e6}))
    assert not np.allclose(low, high, atol=1e-2)
    newer = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    assert np.array_equal(logits(load_folder(tmp_path, config=newer)), high)
    of_gguf = logits(load_gguf(tmp_path, pairs={"llama.rope.freq_base": 1e6}))
    assert np.allclose(of_gguf, high, atol=1e-4)


REFUSED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4, "finetuned": True}}, "finetuned"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4}, "rope_theta": 1.0}, "yarn"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 4, "attn_factor": 1}}, "attn_factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": "4"}}, "rope_scaling.factor"),
    ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor"),
    ({"rope_scaling": {"factor": 4}}, "rope_scaling.rope_type"),
    ({"rope_scaling": {"rope_type": "lineer", "factor": 4}}, "lineer"),
    ({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 4}}, "differ"),
    ({"rope_scaling": "linear"}, "rope_scaling"),
    ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e6}}, "rope_theta"),
    ({"rope_theta": "1e6"}, "rope_theta"),
    ({"rope_thetta": 1e6}, "rope_thetta"),
    ({"hidden_act": "gelu"}, "hidden_act"),
    ({"num_local_experts": 8}, "num_local_experts"),
    ({"attention_bias": True}, "q_proj.bias"),
    ({"mlp_bias": True}, "gate_proj.bias"),
    ({"sliding_window": 4096}, "sliding_window"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ({"architectures": ["JambaForCausalLM"]}, "JambaForCausalLM"),
    ({"architectures": ["LlamaForCausalLM", "Other"]}, "architectures"),
    ({"num_key_value_heads": 3}, "num_kv_heads"),
    ({"head_dim": 24}, "head_dim"),
    ({"head_dim": 32}, "q_proj"),
    ({"vocab_size": 7}, "vocab_size"),
    ({"num_hidden_layers": 3}, "layers.2"),
    ({"num_hidden_layers": 1}, "layers.1"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"intermediate_size": 7}, "gate_proj"),
    ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ({"hidden_size": None}, "hidden_size"),
]


@pytest.mark.parametrize(("config", "named"), REFUSED_CONFIGS)
def test_what_a_config_asks_in_vain_is_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError, match=re.escape(named)):
        load_folder(tmp_path, config=config)


@pytest.mark.parametrize(
    "config",
    [
        {"num_local_experts": None},
        {"attention_bias": False, "mlp_bias": False},
        {"rope_interleaved": False},
        {"sliding_window": None},
        {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True},
        {"transformers_version": "4.55.0", "_name_or_path": "x", "unsloth_fixed": True},
    ],
)
def test_keys_that_ask_for_nothing_are_no_obstacle(tmp_path: Path, config: dict[str, Any]) -> None:
    load_folder(tmp_path, config=config)


def test_a_window_counts_only_when_it_is_used(tmp_path: Path) -> None:
    idle = {"sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 2}
    load_folder(tmp_path, architecture="qwen2", config=idle)
    used = {**idle, "use_sliding_window": True, "max_window_layers": 1}
    model = load_folder(tmp_path, architecture="qwen2", config=used)
    assert [layer.window for layer in model.spec.layers] == [0, 4096]


REFUSED_PAIRS: list[tuple[dict[str, Any], str]] = [
    ({"general.architecture": "mamba"}, "'mamba' is not supported (supported: llama"),
    ({"general.architecture": None}, "general.architecture"),
    ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.factor"),
    ({"llama.rope.scaling.type": "ntk"}, "ntk"),
    ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor"),
    ({"llama.rope.scaling.factor": 4.0}, "llama.rope.scaling.factor"),
    ({"llama.rope.scaling.attn_factor": 1.0}, "llama.rope.scaling.attn_factor"),
    ({"llama.rope.scalling.type": "linear"}, "llama.rope.scalling.type"),
    ({"llama.expert_count": 8}, "llama.expert_used_count"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2}, "ffn_gate_inp"),
    ({"llama.expert_count": 4, "llama.expert_used_count": 5}, "num_active"),
    ({"llama.logit_scale": 2.0}, "llama.logit_scale"),
    ({"llama.attention.value_length": 32}, "llama.attention.value_length"),
    ({"llama.attention.head_count_kv": 3}, "num_kv_heads"),
    ({"llama.attention.head_count": [2, 2]}, "llama.attention.head_count"),
    ({"llama.embedding_length": 96}, "token_embd"),
    ({"llama.vocab_size": 5}, "llama.vocab_size"),
    ({"llama.context_length": 0}, "llama.context_length"),
    ({"llama.rope.dimension_count": 13}, "rope dim"),
]


@pytest.mark.parametrize(("pairs", "named"), REFUSED_PAIRS)
def test_what_a_gguf_asks_in_vain_is_refused_by_name(
    tmp_path: Path, pairs: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError, match=re.escape(named)):
        load_gguf(tmp_path, pairs=pairs)


def test_idle_gguf_keys_are_no_obstacle(tmp_path: Path) -> None:
    load_gguf(tmp_path, pairs={"llama.expert_count": 0, "llama.rope.scaling.finetuned": True})


def test_a_tensor_without_a_place_is_refused_by_name(tmp_path: Path) -> None:
    weights = random_weights(TinyShape())
    weights["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    with pytest.raises(ModelFileError, match=r"q_norm\.weight"):
        load_folder(tmp_path, weights=weights)


def test_a_missing_tensor_is_refused_by_name(tmp_path: Path) -> None:
    weights = random_weights(TinyShape())
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_folder(tmp_path, weights=weights)


def test_a_tied_head_that_is_stored_too_must_be_the_embedding(tmp_path: Path) -> None:
    weights = random_weights(replace(TinyShape(), tied=True))
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    assert load_folder(tmp_path, weights=weights, tied=True).is_tied
    weights["lm_head.weight"][0, 0] += 1
    with pytest.raises(ModelFileError, match=r"lm_head\.weight"):
        load_folder(tmp_path, weights=weights, tied=True)


def test_no_family_is_named_outside_its_file() -> None:
    rooms = next(iter(families.__path__)).rsplit("/models/", 1)[0]
    names = {name for family in families.families() for name in family.ARCHITECTURES}
    found = grep_families(rooms, names)
    assert not found


def grep_families(root: str, names: set[str]) -> list[str]:
    from pathlib import Path

    pattern = re.compile(rf"\b({'|'.join(sorted(names))})\b", re.IGNORECASE)
    files = (
        path for room in ("models", "kernels", "engine") for path in Path(root, room).rglob("*.py")
    )
    outside = (path for path in files if path.parent.name != "families")
    return [str(path) for path in outside if pattern.search(path.read_text())]
