"""Every family on a tiny checkpoint: logits as transformers computed them, bits as ever.

recorded/CASE.json holds transformers' logits (see record.py); the checkpoint itself is made anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from families.cases import CASES, Case, weights, write_folder
from families.twins import write_twin
from kernels.tiny_decoder import Work, batch_of

from insitu.kernels.blocks import BlockType, decode
from insitu.kernels.encode import encode
from insitu.kernels.native import Limits, Native, available_isas
from insitu.kernels.passes import lower
from insitu.kernels.reference import Reference
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.models.batch import Batch

Float32 = npt.NDArray[np.float32]
RECORDED = Path(__file__).parent / "recorded"
BLOCK_SIZE = 16
LIMITS = Limits(64, 64, 2, num_blocks=16, max_blocks_per_seq=8)
BLOCKS = [5, 2, 9, 4]


def recorded(name: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return answer


def load(name: str, folder: Path) -> LoadedModel:
    case = CASES[name]
    write_folder(folder, case.config_json(), weights(recorded(name)["shapes"]))
    return load_model(open_source(folder), case.max_model_len)


def in_steps(run: Callable[[Batch], Float32], case: Case, ends: list[int]) -> Float32:
    """Logits of every position, the tokens being computed in steps that end there."""
    tokens, rows = case.tokens(), []
    for start, stop in zip([0, *ends], ends, strict=False):
        work = Work(tokens, start, stop, BLOCKS, wanted=range(stop - start))
        rows.append(run(batch_of([work], BLOCK_SIZE)))  # type: ignore[arg-type]
    return np.concatenate(rows)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, model = CASES[name], load(name, tmp_path)
    expected = np.array(recorded(name)["logits"], np.float32)
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    whole = in_steps(Reference(model.program, kv).run, case, [case.num_tokens])
    assert np.abs(whole[case.rows()] - expected).max() < 1e-4
    one_by_one = list(range(case.num_tokens // 2, case.num_tokens + 1))
    decoded = in_steps(Reference(model.program, kv).run, case, one_by_one)
    assert np.abs(decoded - whole).max() < 1e-4


def quantised(model: LoadedModel) -> LoadedModel:
    """Its matrices as Q8_0."""
    for segment in (segment for linear in model.linears for segment in linear.segments):
        values = decode(segment.block_type, segment.raw(), segment.n, segment.k)
        segment.block_type = BlockType.Q8_0
        segment.data = encode(BlockType.Q8_0, values)
    return model


def native_logits(
    model: LoadedModel, case: Case, ends: list[int], isa: str | None = None, threads: int = 1
) -> Float32:
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    program = lower(model.program)
    engine = Native(program, kv=kv, limits=LIMITS, num_threads=threads, isa=isa)
    try:
        return in_steps(engine.forward, case, ends)
    finally:
        engine.close()


@pytest.mark.parametrize("name", CASES)
def test_native_floats_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, model = CASES[name], load(name, tmp_path)
    answer = native_logits(model, case, [case.num_tokens // 2, case.num_tokens])
    expected = np.array(recorded(name)["logits"], np.float32)
    assert np.abs(answer[case.rows()] - expected).max() < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_quantised_bits_are_the_definitions_however_they_are_run(name: str, tmp_path: Path) -> None:
    case, model = CASES[name], quantised(load(name, tmp_path))
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    expected = in_steps(Reference(lower(model.program), kv).run, case, [case.num_tokens])
    answers = []
    for index, isa in enumerate(available_isas()):
        ends = [1 + 2 * index, case.num_tokens - 1, case.num_tokens]
        model = quantised(load(name, tmp_path))
        answers.append(native_logits(model, case, ends, isa, 1 + index % 2))
    assert np.abs(answers[0] - expected).max() < 1e-4
    assert all(answer.tobytes() == answers[0].tobytes() for answer in answers)


@pytest.mark.parametrize("name", CASES)
def test_a_config_as_transformers_saves_it_says_the_same(name: str, tmp_path: Path) -> None:
    answer, length = recorded(name), CASES[name].max_model_len
    write_folder(tmp_path, answer["config"], weights(answer["shapes"]))
    assert load_model(open_source(tmp_path), length).spec == load(name, tmp_path / "own").spec


# What transformers takes where a config.json is silent, which is not what it takes null for.
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "default"},
    "sliding_attention": {"rope_type": "default"},
}
SILENCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gemma2", {"attn_logit_softcapping": ...}, {"attn_logit_softcapping": 50.0}),
    ("gemma2", {"final_logit_softcapping": ...}, {"final_logit_softcapping": 30.0}),
    ("gemma2", {"query_pre_attn_scalar": ...}, {"query_pre_attn_scalar": 256}),
    ("gemma2", {"sliding_window": ...}, {"sliding_window": 4096}),
    ("gemma3", {"query_pre_attn_scalar": ...}, {"query_pre_attn_scalar": 256}),
    ("gemma3", {"sliding_window": ...}, {"sliding_window": 4096}),
    ("gemma3", {"rope_theta": ..., "rope_local_base_freq": ...}, {}),
    (
        "gemma3",
        {"rope_theta": ..., "rope_local_base_freq": ..., "rope_parameters": GEMMA3_ROPES},
        {},
    ),
    (
        "gemma3",
        {
            "rope_theta": ...,
            "rope_local_base_freq": ...,
            "rope_parameters": {"full_attention": GEMMA3_ROPES["full_attention"]},
        },
        {},
    ),
    ("mistral", {"sliding_window": ...}, {"sliding_window": 4096}),
    ("mixtral", {"sliding_window": ...}, {"sliding_window": None}),
    ("phi3", {"sliding_window": ...}, {"sliding_window": None}),
]


@pytest.mark.parametrize(("name", "silent", "meant"), SILENCES)
def test_a_silent_config_means_what_transformers_takes_it_for(
    name: str, silent: dict[str, Any], meant: dict[str, Any], tmp_path: Path
) -> None:
    tensors = weights(recorded(name)["shapes"])
    specs = []
    for index, changes in enumerate((silent, meant)):
        config = {**CASES[name].config_json(), **changes}
        config = {key: value for key, value in config.items() if value is not ...}
        write_folder(tmp_path / str(index), config, tensors)
        specs.append(load_model(open_source(tmp_path / str(index))).spec)
    assert specs[0] == specs[1]


def test_a_cap_that_is_null_is_none(tmp_path: Path) -> None:
    caps = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    config = {**CASES["gemma2"].config_json(), **caps}
    write_folder(tmp_path, config, weights(recorded("gemma2")["shapes"]))
    spec = load_model(open_source(tmp_path)).spec
    assert (spec.attention.soft_cap, spec.multipliers.logit_soft_cap) == (0, 0)
    # Gemma 3 has no caps; other programs differ in what they make of one.
    config = {**CASES["gemma3"].config_json(), "attn_logit_softcapping": 2.0}
    write_folder(tmp_path, config, weights(recorded("gemma3")["shapes"]))
    with pytest.raises(ModelFileError, match="attn_logit_softcapping: is not supported"):
        load_model(open_source(tmp_path))


# What GGUF cannot say: theta that follows a length; which layers are dense, or have a window; how
# scores are scaled (or says otherwise, by being silent).
WITHOUT_TWIN = {
    *("llama-dynamic", "qwen2-windows", "qwen2-moe-dense", "gemma2-scalar", "granite-unscaled"),
}


@pytest.mark.parametrize("name", sorted(CASES.keys() - WITHOUT_TWIN))
def test_a_gguf_twin_is_the_same_model(name: str, tmp_path: Path) -> None:
    case, path = CASES[name], tmp_path / "twin.gguf"
    write_twin(path, case, weights(recorded(name)["shapes"]))
    model = load_model(open_source(path), case.max_model_len)
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    answer = in_steps(Reference(model.program, kv).run, case, [case.num_tokens])
    expected = np.array(recorded(name)["logits"], np.float32)
    assert np.abs(answer[case.rows()] - expected).max() < 1e-4


@pytest.mark.slow(reason="needs torch and transformers, which no other test does")
def test_transformers_still_computes_what_was_recorded() -> None:
    pytest.importorskip("transformers")
    from families.record import record

    for name, case in CASES.items():
        again, before = record(case), recorded(name)
        assert again["shapes"] == before["shapes"], name
        assert np.allclose(again["logits"], before["logits"], atol=1e-5), name
