"""From files to a generator: what a file says wrongly is named, whatever room reads it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf_bytes import ARRAY, F32, I32, U8, U16, Typed
from tiny_model import (
    NORMAL,
    TinyShape,
    Vocabulary,
    random_weights,
    write_gguf,
    write_safetensors,
)

from insitu.engine import start
from insitu.engine.runner import BatchRunner
from insitu.kernels.blocks import BlockType
from insitu.llm.front_door import LLM
from insitu.refusal import Refusal
from insitu.sampling_params import SamplingParams
from insitu.weights.errors import ModelFileError

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.kernels.kv_layout import KVDtype

WORDS = Vocabulary()
KEY = "tokenizer.ggml."
THREE = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


def three_tokens(path: Path, **settings: Any) -> tuple[int, ...]:
    with LLM(path, threads=1, **settings) as llm:
        return llm.generate("hello", THREE)[0].token_ids


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY + "scores", Typed(ARRAY, [0] * len(WORDS), U8)),
        (KEY + "scores", [0.5]),
        (KEY + "tokens", None),
        (KEY + "tokens", [b"\xff", *WORDS.tokens[1:]]),
        (KEY + "tokens", [*WORDS.tokens, "zz"]),
        (KEY + "tokens", WORDS.tokens[:-1]),
        (KEY + "merges", None),
        (KEY + "merges", ["he"]),
        (KEY + "merges", ["h qq"]),
        (KEY + "eos_token_id", 2**32 - 1),
        (KEY + "eos_token_id", 2.0),
        (KEY + "bos_token_id", Typed(I32, -1)),
        ("tokenizer.chat_template", ["x"]),
        ("llama.block_count", "2"),
        ("llama.block_count", None),
        ("llama.context_length", None),
        ("llama.rope.freq_base", Typed(F32, float("nan"))),
    ],
)
def test_a_wrong_value_names_its_key(tmp_path: Path, key: str, value: Any) -> None:
    path = tmp_path / "m.gguf"
    pairs = {key: value}
    if key.endswith("tokens") and value is not None:
        pairs[KEY + "token_type"] = [*WORDS.types, NORMAL][: len(value)]
    write_gguf(path, pairs=pairs)
    with pytest.raises(ModelFileError, match=f"key {key}"):
        LLM(path, threads=1)


@pytest.mark.parametrize("kind", [U8, U16])
def test_narrower_integers_mean_the_same(tmp_path: Path, kind: int) -> None:
    write_gguf(tmp_path / "plain.gguf")
    write_gguf(
        tmp_path / "narrow.gguf", pairs={KEY + "token_type": Typed(ARRAY, WORDS.types, kind)}
    )
    assert three_tokens(tmp_path / "narrow.gguf") == three_tokens(tmp_path / "plain.gguf")


def test_a_token_that_the_model_has_no_row_for_is_refused_where_it_is_used(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "m")
    file = tmp_path / "m" / "tokenizer.json"
    values = json.loads(file.read_text())
    later = {**values["added_tokens"][-1], "id": len(WORDS), "content": "<later>"}
    values["added_tokens"].append(later)
    file.write_text(json.dumps(values))
    with LLM(tmp_path / "m", threads=1) as llm:
        with pytest.raises(Refusal, match=r"no embedding for token .*<later>") as caught:
            llm.generate("hello<later>", THREE, parse_special=True)
        assert caught.value.param == "prompt"
        assert len(llm.generate("hello<later>", THREE)[0].token_ids) == 3


@pytest.mark.parametrize("head_dim", [16, 80, 112])
def test_heads_of_whole_vectors_run(tmp_path: Path, head_dim: int) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, head_dim=head_dim, block_types=BlockType.F16)
    assert len(three_tokens(path, kv_cache_dtype="f16")) == 3


@pytest.mark.parametrize("head_dim", [8, 24, 40])
def test_other_heads_are_refused_by_name(tmp_path: Path, head_dim: int) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, head_dim=head_dim, block_types=BlockType.F16)
    with pytest.raises(ModelFileError, match=f"head_dim: {head_dim}"):
        LLM(path, threads=1)


@pytest.mark.parametrize("dtype", ["q8_0", "f8", "INT8", ""])
def test_a_cache_dtype_that_is_not_built_is_refused_by_name(tmp_path: Path, dtype: str) -> None:
    write_gguf(tmp_path / "m.gguf")
    with pytest.raises(ValueError, match=f"{dtype!r} is not one of f16, bf16, f32, int8"):
        LLM(tmp_path / "m.gguf", threads=1, kv_cache_dtype=dtype)


@pytest.mark.parametrize("dtype", ["f16", "int8"])
@pytest.mark.parametrize("outlier", [1e4, 1e7])
def test_outliers_in_keys_saturate_and_stay_finite(
    tmp_path: Path, outlier: float, dtype: KVDtype
) -> None:
    weights = random_weights(TinyShape())
    for name, weight in weights.items():
        if name.endswith("k_proj.weight"):
            weight[::7] *= outlier
    path = tmp_path / "m.gguf"
    write_gguf(path, weights=weights, block_types=BlockType.F32)
    with LLM(path, threads=1, kv_cache_dtype=dtype) as llm:
        asked = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=1)
        (answer,) = llm.generate("hello world", asked)
    assert np.isfinite([one.logprob for one in answer.logprobs]).all()
    assert len(answer.logprobs) == 20


def test_no_room_for_a_thread_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[BatchRunner] = []
    close = BatchRunner.close

    def has_no_room(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    def closes(self: BatchRunner) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(start, "EngineLoop", has_no_room)
    monkeypatch.setattr(BatchRunner, "close", closes)
    write_gguf(tmp_path / "m.gguf")
    with pytest.raises(MemoryError, match="threads"):
        three_tokens(tmp_path / "m.gguf")
    assert len(closed) == 1
