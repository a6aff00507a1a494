"""Rope that depends on a length is fixed by the length the engine is given, by nothing later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from families.cases import CASES, weights, write_folder
from families.test_families import recorded
from families.twins import write_twin
from tiny_model import write_gguf, write_safetensors

from insitu.models.load import load_model
from insitu.models.rope_scaling import by_wavelength, dynamic, yarn
from insitu.models.rope_settings import settings_of
from insitu.models.spec import DecoderSpec, RopeSpec
from insitu.models.twins import twin_of
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = RopeSpec(1e4, 32, "halves")


def spec_of(name: str, folder: Path, asked_len: int | None, **changed: object) -> DecoderSpec:
    case = CASES[name]
    config = {**case.config_json(), **changed}
    write_folder(folder, config, weights(recorded(name)["shapes"]))
    return load_model(open_source(folder), asked_len).spec


def test_longrope_takes_its_long_factors_beyond_the_original_length(tmp_path: Path) -> None:
    scaling = CASES["phi3-longrope-long"].config["rope_scaling"]
    for asked, which in ((None, "long"), (17, "long"), (16, "short"), (1, "short")):
        (rope,) = spec_of("phi3-longrope-long", tmp_path, asked).ropes
        assert list(rope.divisors) == scaling[f"{which}_factor"], asked
        assert f"{which}_factor" in rope.scaling
        assert rope.magnitude == pytest.approx(1.2247448713915890)  # sqrt(1 + ln 4 / ln 16)


def test_dynamic_changes_theta_with_the_length_it_is_given(tmp_path: Path) -> None:
    thetas = [spec_of("llama-dynamic", tmp_path, n).ropes[0].theta for n in (8, 16, 32, 48, None)]
    assert thetas[0] == thetas[1] == pytest.approx(1e4)
    assert thetas[1] < thetas[2] < thetas[3] == thetas[4]
    stretch = 3 * 32 / 16 - (3 - 1)
    assert thetas[2] == pytest.approx(1e4 * stretch ** (16 / 14), rel=1e-12)


@pytest.mark.parametrize(("name", "length"), [("llama-dynamic", 48), ("llama-yarn", 64)])
def test_a_stretched_model_may_be_asked_for_what_it_is_stretched_to(
    name: str, length: int, tmp_path: Path
) -> None:
    spec = spec_of(name, tmp_path, None, max_position_embeddings=16)
    assert spec.max_model_len == length


def test_pairs_that_turn_fast_keep_their_pace_and_slow_ones_are_slowed() -> None:
    for stretched in (
        by_wavelength(PLAIN, 8.0, 1.0, 4.0, 8192),
        yarn(PLAIN, 8.0, (32.0, 1.0, 8192), 1.0, is_whole=True),
    ):
        assert stretched.divisors[0] == 1
        assert stretched.divisors[-1] == 8
        assert list(stretched.divisors) == sorted(stretched.divisors)
        assert any(1 < divisor < 8 for divisor in stretched.divisors)


def test_a_yarn_s_magnitude_is_what_it_says_and_its_setting_is_spelt_right(tmp_path: Path) -> None:
    scaling = CASES["llama-yarn"].config["rope_scaling"]
    plain = spec_of("llama-yarn", tmp_path, None).ropes[0]
    assert plain.magnitude == pytest.approx(1.1386294361119891)  # 0.1 ln 4 + 1
    told = {**scaling, "attention_factor": 1.25}
    for spelling in ("rope_scaling", "rope_parameters"):
        changed = {"rope_scaling": None, spelling: told}
        (rope,) = spec_of("llama-yarn", tmp_path, None, **changed).ropes
        assert (rope.magnitude, rope.divisors) == (1.25, plain.divisors)
    misspelt = {**scaling, "attn_factor": 1.25}
    with pytest.raises(ModelFileError, match=r"rope_scaling\.attn_factor: is not a setting"):
        spec_of("llama-yarn", tmp_path, None, rope_scaling=misspelt)


def test_settings_that_give_no_angles_are_arithmetic_errors() -> None:
    with pytest.raises(ArithmeticError):
        dynamic(RopeSpec(1e4, 2, "halves"), 2.0, 16, 32)
    with pytest.raises(ArithmeticError):
        yarn(RopeSpec(1.0, 32, "halves"), 8.0, (32.0, 1.0, 8192), 1.0, is_whole=True)


@pytest.mark.parametrize(
    ("dim", "theta", "settings"),
    [
        (128, 5e5, (8.0, 1.0, 4.0, 8192)),
        (64, 5e5, (32.0, 1.0, 4.0, 8192)),
        (32, 5e5, (8.0, 1.0, 4.0, 32)),
        (128, 1e6, (4.0, 1.0, 3.5, 5000)),
    ],
)
def test_settings_come_back_from_their_factors(
    dim: int, theta: float, settings: tuple[float, float, float, int]
) -> None:
    plain = RopeSpec(theta, dim, "halves")
    factors = np.array(by_wavelength(plain, *settings).divisors, np.float32).tolist()
    found = settings_of(plain, factors)
    assert found is not None
    assert found.pop("rope_type") == "llama3"
    assert tuple(found.values()) == settings


def test_of_settings_that_differ_by_a_scale_any_gives_the_factors() -> None:
    """Two bounds and a length are told by their ratios alone."""
    factors = by_wavelength(PLAIN, 2.5, 2.0, 8.0, 4096).divisors
    found = settings_of(PLAIN, factors)
    assert found is not None
    assert found["original_max_position_embeddings"] == 2048


def test_factors_of_no_settings_have_none() -> None:
    half = PLAIN.dim // 2
    assert settings_of(PLAIN, [2.0] * half) == {"rope_type": "linear", "factor": 2.0}
    for factors in ([1.0] * half, [0.5] * half, [float(i + 1) for i in range(half)]):
        assert settings_of(PLAIN, factors) is None
    assert settings_of(PLAIN, [1.0] * (half - 1) + [float("inf")]) is None


def test_factors_of_no_settings_go_into_a_config_as_they_are(tmp_path: Path) -> None:
    path, name = tmp_path / "twin.gguf", "llama-llama3"
    factors = np.linspace(1, 3, 16).astype(np.float32)
    write_twin(path, CASES[name], weights(recorded(name)["shapes"]), rope_freqs=factors)
    own = open_source(path)
    there = twin_of(own, "safetensors")
    assert there.values["rope_scaling"]["rope_type"] == "longrope"
    for length in (8, 64):
        specs = [load_model(source, length).spec for source in (own, there)]
        assert specs[0].ropes[0].divisors == specs[1].ropes[0].divisors
        assert specs[0].ropes[0].magnitude == specs[1].ropes[0].magnitude == 1


def test_a_magnitude_of_yarn_goes_into_a_gguf_file(tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.75}
    write_safetensors(tmp_path, config={"rope_scaling": scaling})
    there = twin_of(open_source(tmp_path), "gguf")
    assert load_model(there).spec.ropes[0].magnitude == pytest.approx(0.75, rel=1e-6)


def test_factors_of_a_gguf_file_are_not_scaled_once_more(tmp_path: Path) -> None:
    path, name = tmp_path / "twin.gguf", "llama-llama3"
    scaling: dict[str, Any] = {"scaling_type": "linear", "scaling_factor": 2.0}
    write_twin(path, CASES[name], weights(recorded(name)["shapes"]), **scaling)
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight: rope scaling 'linear'"):
        load_model(open_source(path))


def test_a_gguf_yarn_is_the_config_s(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    pairs = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 128}
    write_gguf(path, pairs={f"llama.rope.{key}": value for key, value in pairs.items()})
    spec = load_model(open_source(path)).spec
    expected = yarn(
        RopeSpec(1e4, 16, "adjacent"), 4.0, (32.0, 1.0, 128), 1.1386294361119891, is_whole=True
    )
    assert spec.ropes == (expected,)
