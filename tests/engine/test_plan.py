"""The memory plan over a tiny model: what is decided, what is refused, and that it is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tiny_model import write_gguf

from insitu.engine.machine import Memory
from insitu.engine.plan import DEFAULT_KV_TOKENS, Plan, PlanError, Wanted, make_plan
from insitu.engine.start import make_engine
from insitu.kernels.native import available_isas
from insitu.models.load import LoadedModel, load_model
from insitu.models.sampling_defaults import SamplingDefaults
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30
# Bytes of key and value of a token: 2 layers x 2 KV heads x 16 dims, twice, in f16.
KV_TOKEN_BYTES = 256


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path: Path = tmp_path_factory.mktemp("plan") / "tiny.gguf"
    write_gguf(path)
    return load_model(open_source(path))


def made(model: LoadedModel, limit_bytes: int = GIB, **wanted: Any) -> Plan:
    return make_plan(model, Wanted(**{"threads": 1, **wanted}), Memory(limit_bytes, "a test"))


def test_defaults(model: LoadedModel) -> None:
    plan = made(model)
    assert plan.kv_tokens == DEFAULT_KV_TOKENS
    assert plan.kv_cache_bytes == DEFAULT_KV_TOKENS * KV_TOKEN_BYTES
    assert plan.max_model_len == 512
    assert (plan.max_num_batched_tokens, plan.max_num_batched_tokens_alone) == (64, 512)
    assert plan.max_num_seqs == plan.max_num_logit_rows == 16
    assert plan.at_start_bytes < plan.at_most_bytes < GIB
    assert plan.notes == ()
    assert plan.numeric_settings["kv_cache_dtype"] == "f16"


def test_the_instruction_set_is_shown(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(model).isa == available_isas()[-1]
    monkeypatch.setenv("INSITU_ISA", "generic")
    assert "instruction set = generic (INSITU_ISA)" in made(model).describe()


def test_half_of_what_is_left(model: LoadedModel) -> None:
    everything_else = made(model).at_most_bytes - made(model).kv_cache_bytes
    plan = made(model, everything_else + 2**20)
    assert plan.kv_cache_bytes <= 2**19
    assert plan.kv_cache_bytes > 2**19 - 32 * KV_TOKEN_BYTES
    assert "half of what is left" in plan.notes[0]


def test_max_model_len_is_what_the_pool_holds(model: LoadedModel) -> None:
    plan = made(model, kv_cache_bytes=100 * KV_TOKEN_BYTES)
    assert plan.kv_tokens == 96
    assert plan.max_model_len == 96
    assert "max_model_len is 96, not the model's 512" in plan.notes[0]
    assert plan.limits.max_blocks_per_seq == 3


def test_f32_takes_twice_the_bytes(model: LoadedModel) -> None:
    assert made(model, kv_cache_dtype="f32").kv_cache_bytes == 2 * made(model).kv_cache_bytes


def test_a_block_has_16_or_32_tokens(model: LoadedModel) -> None:
    small, large = made(model, block_size=16), made(model)
    assert (small.block_size, large.block_size) == (16, 32)
    assert small.num_blocks == 2 * large.num_blocks
    assert small.kv_cache_bytes == large.kv_cache_bytes
    assert small.numeric_settings == large.numeric_settings
    for wrong in (0, 8, 24, 64, True, "16"):
        with pytest.raises(PlanError, match="--block-size must be 16 or 32"):
            made(model, block_size=wrong)


def test_few_tokens_a_step_mean_few_sequences(model: LoadedModel) -> None:
    plan = made(model, max_num_batched_tokens=8)
    assert (plan.max_num_seqs, plan.max_num_batched_tokens_alone) == (8, 8)
    assert "--max-num-batched-tokens 8" in plan.notes[0]
    many = made(model, max_num_seqs=100)
    assert many.max_num_batched_tokens == 100


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"max_model_len": 513}, r"--max-model-len 513.*512"),
        ({"max_model_len": 200, "kv_cache_bytes": 25_600}, r"200.*96.*--kv-cache-bytes"),
        ({"kv_cache_bytes": 1000}, r"--kv-cache-bytes 1000.*8192"),
        ({"kv_cache_bytes": 2 * GIB}, r"--kv-cache-bytes 2147483648.*a test"),
        ({"limit_bytes": 2**20}, r"does not fit.*1\.0 MiB \(a test\)"),
    ],
)
def test_what_cannot_be_met_names_numbers_and_flags(
    model: LoadedModel, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlanError, match=words):
        made(model, **wanted)


def test_a_vocabulary_is_planned_as_its_codec_says(model: LoadedModel) -> None:
    items = [
        {item.name: item for item in make_plan(model, Wanted(threads=1), memory, None, size).items}
        for memory, size in ((Memory(GIB, "a test"), 0), (Memory(GIB, "a test"), 5000))
    ]
    without, given = (one["vocabulary"] for one in items)
    assert (without.at_start_bytes, without.at_most_bytes) == (0, 0)
    assert given.at_start_bytes == 5000
    assert given.at_most_bytes > 5000


def test_words_and_json(model: LoadedModel) -> None:
    plan = made(model)
    text = plan.describe()
    for word in ("weights", "KV blocks", "activations", "logits", "scratch", "Python", "Q8_0"):
        assert word in text
    assert "32,768 tokens" in plan.summary()
    values = json.loads(json.dumps(plan.as_dict()))
    assert sum(item["at_most_bytes"] for item in values["items"]) == values["at_most_bytes"]
    assert (
        sum(group["size_bytes"] for group in values["weights"])
        <= values["items"][0]["at_most_bytes"]
    )


def test_a_models_sampling_defaults_are_numeric_and_shown(model: LoadedModel) -> None:
    assert made(model).numeric_settings["sampling_defaults"] == "none"
    assert "  temperature = 1 (insitu's)" in made(model).describe()
    defaults = SamplingDefaults({"temperature": 0.7, "top_k": 20}, ("x is not applied.",))
    plan = make_plan(model, Wanted(threads=1), Memory(GIB, "a test"), defaults)
    assert plan.numeric_settings["sampling_defaults"] == "temperature 0.7, top_k 20"
    assert plan.as_dict()["sampling_defaults"] == {"temperature": 0.7, "top_k": 20}
    assert plan.notes == ("x is not applied.",)
    text = plan.describe()
    for line in ("temperature = 0.7 (the model's)", "top_p = 1 (insitu's)", "x is not applied"):
        assert line in text


def test_kernels_own_what_was_planned(model: LoadedModel) -> None:
    plan = made(model)
    engine = make_engine(model, plan)
    sizes = engine.runner._native.sizes  # type: ignore[attr-defined]
    planned = {item.name: item.at_most_bytes for item in plan.items}
    assert sizes.packed_bytes == planned["weights"]
    assert sizes.kv_bytes == planned["KV blocks"]
    assert sizes.arena_bytes == planned["activations"] + planned["logits"]
    assert sizes.scratch_bytes == planned["scratch"]
    engine.runner.close()
