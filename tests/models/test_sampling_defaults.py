"""What a file says of sampling is read alike from both formats, or refused by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tiny_model import write_gguf, write_safetensors

from insitu.models.sampling_defaults import SamplingDefaults, read_sampling_defaults
from insitu.sampling_params import SamplingParams
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path


def of_folder(tmp_path: Path, **generation: Any) -> SamplingDefaults:
    write_safetensors(tmp_path / "tiny", generation=generation)
    return read_sampling_defaults(open_source(tmp_path / "tiny"))


def of_gguf(tmp_path: Path, **pairs: Any) -> SamplingDefaults:
    named = {f"general.sampling.{name}": value for name, value in pairs.items()}
    write_gguf(tmp_path / "tiny.gguf", pairs=named)
    return read_sampling_defaults(open_source(tmp_path / "tiny.gguf"))


def test_both_formats_say_the_same(tmp_path: Path) -> None:
    wanted = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05}
    assert of_folder(tmp_path, do_sample=True, **wanted).values == wanted
    # A GGUF stores them in 32 bits, and its own name for the temperature.
    assert of_gguf(tmp_path, temp=0.7, top_k=20, top_p=0.8, min_p=0.05).values == wanted


def test_a_file_that_says_nothing_gives_nothing(tmp_path: Path) -> None:
    assert of_folder(tmp_path) == of_gguf(tmp_path) == SamplingDefaults()


def test_no_limit_is_written_in_two_ways(tmp_path: Path) -> None:
    assert of_folder(tmp_path, top_k=-1, temperature=None).values == {"top_k": 0}
    assert of_gguf(tmp_path, top_k=0).values == {"top_k": 0}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -0.5),
        ("temperature", "0.7"),
        ("temperature", True),
        ("temperature", 1e300),
        ("temperature", 10**400),
        ("top_k", 20.0),
        ("top_k", -2),
        ("top_k", 2**40),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_p", [0.9]),
        ("min_p", -0.1),
        ("min_p", {}),
        ("repetition_penalty", 0),
        ("presence_penalty", 2.5),
        ("typical_p", 0),
        ("do_sample", "yes"),
    ],
)
def test_a_bad_value_names_its_key(tmp_path: Path, key: str, value: Any) -> None:
    others = {} if key == "temperature" else {"temperature": 1.0}
    with pytest.raises(ModelFileError, match=rf"generation_config\.json: key {key}: "):
        of_folder(tmp_path, **others, **{key: value})


def test_a_bad_value_of_a_gguf_names_its_key(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"key general\.sampling\.top_p: is 2"):
        of_gguf(tmp_path, top_p=2.0)


def test_what_is_not_applied_is_noted_and_neutral_values_are_not(tmp_path: Path) -> None:
    more = {"penalty_alpha": 0.6, "guidance_scale": 1.0, "num_beams": 1, "bad_words_ids": [[5]]}
    assert of_folder(tmp_path, **more).notes == (
        "generation_config.json: penalty_alpha 0.6 is not applied.",
        "generation_config.json: bad_words_ids is not applied.",
    )
    notes = of_gguf(tmp_path, num_beams=1, mirostat=2).notes
    assert notes == ("the file: general.sampling.mirostat 2 is not applied.",)


def test_penalties_and_truncation_of_either_format_are_applied_where_they_ask_for_something(
    tmp_path: Path,
) -> None:
    wanted = {"repetition_penalty": 1.1, "typical_p": 0.9, "frequency_penalty": -0.5}
    assert of_folder(tmp_path, **wanted, presence_penalty=0, xtc_probability=0.0).values == wanted
    found = of_gguf(
        tmp_path, penalty_repeat=1.1, penalty_last_n=64, xtc_probability=0.5, xtc_threshold=0.2
    ).values
    assert found == {
        "repetition_penalty": 1.1, "penalty_last_n": 64,
        "xtc_probability": 0.5, "xtc_threshold": 0.2,
    }  # fmt: skip
    assert of_folder(tmp_path, repetition_penalty=1.0, typical_p=1.0).values == {}


def test_values_beside_do_sample_false_are_not_applied(tmp_path: Path) -> None:
    defaults = of_folder(tmp_path, do_sample=False, temperature=0.6)
    assert defaults.values == {}
    assert "do_sample is false" in defaults.notes[0]


def test_what_a_request_asks_for_wins_over_the_model_and_the_model_over_insitu() -> None:
    defaults = {"temperature": 0.7, "top_k": 20}
    own = SamplingParams.DEFAULTS
    assert SamplingParams().over(defaults) == {**own, "temperature": 0.7, "top_k": 20}
    chosen = SamplingParams(temperature=0, top_k=0, min_p=0.1).over(defaults)
    assert chosen == {**own, "temperature": 0, "top_k": 0, "min_p": 0.1}
