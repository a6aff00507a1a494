"""Models written in the other format: the same tokens, the same logits, or a refusal by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cli.test_cli import insitu
from codec import tiny_sentencepiece
from codec.test_real_models import rows
from codec.test_twins import values
from families.cases import CASES, Case, weights, write_folder
from families.test_families import BLOCK_SIZE, in_steps, recorded
from kernels.tiny_decoder import Work, batch_of
from tiny_model import Vocabulary as Words
from tiny_model import tokenizer_json, write_gguf, write_safetensors
from tokenizers import Tokenizer as Library

from insitu.codec.chat import load_chat_template
from insitu.codec.tokenizer import load_tokenizer
from insitu.kernels.blocks import BlockType, decode
from insitu.kernels.reference import Reference
from insitu.models.kv_cache import kv_layout
from insitu.models.load import load_model
from insitu.models.sampling_defaults import read_sampling_defaults
from insitu.models.twins import twin_of
from insitu.quantize.convert import converted
from insitu.quantize.errors import QuantizeError
from insitu.quantize.layout import Types
from insitu.quantize.run import Wish, quantize
from insitu.types import Message
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.weights.tensors import TensorSource

F32 = Types(BlockType.F32)
KEPT = [f"tokenizer.ggml.add_{name}" for name in ("bos_token", "eos_token", "space_prefix")]
TEXT = "hello world, don't 12345 <|im_end|> é日 \n\n x"
# What GGUF has no words for, and what the refusal names.
REFUSED = {
    "llama-dynamic": "rope_scaling",
    "qwen2-windows": r"layers\[1\]\.window",
    "qwen2-moe-dense": r"blk\.1\.ffn_gate_inp",
    "gemma2-scalar": r"attention\.scale",
    "granite-unscaled": r"attention\.scale",
}


def silent(*_: object) -> None:
    """Watches nothing."""


def written(source: Path, target: Path, form: Any = None, types: Types = F32) -> TensorSource:
    quantize(Wish(source, target, types, "nearest", form=form), silent)
    return open_source(target)


def logits(source: TensorSource, case: Case) -> np.ndarray:
    model = load_model(source, case.max_model_len)
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    return in_steps(Reference(model.program, kv).run, case, [case.num_tokens])


def logits_of(source: TensorSource, ids: list[int]) -> np.ndarray:
    model = load_model(source)
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    work = Work(np.array(ids, np.int32), 0, len(ids), [2, 0, 1], wanted=range(len(ids)))
    return Reference(model.program, kv).run(batch_of([work], BLOCK_SIZE))


@pytest.mark.parametrize("name", sorted(CASES.keys() - REFUSED.keys()))
def test_a_model_of_every_family_goes_there_and_back(name: str, tmp_path: Path) -> None:
    case, folder = CASES[name], tmp_path / "a"
    write_folder(folder, case.config_json(), weights(recorded(name)["shapes"]))
    own = logits(open_source(folder), case)
    there = written(folder, tmp_path / "a.gguf")
    assert np.abs(logits(there, case) - own).max() < 2e-5  # rows of heads in another order
    back = written(tmp_path / "a.gguf", tmp_path / "b", "safetensors")
    assert np.abs(logits(back, case) - own).max() < 2e-5
    assert set(back.tensors) == set(open_source(folder).tensors)
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    for key, value in case.config_json().items():
        if key not in ("dtype", "rope_scaling", "pad_token_id"):
            assert config[key] == pytest.approx(value), key


@pytest.mark.parametrize("name", REFUSED)
def test_what_gguf_has_no_words_for_is_refused_by_name(name: str, tmp_path: Path) -> None:
    write_folder(tmp_path, CASES[name].config_json(), weights(recorded(name)["shapes"]))
    with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
        twin_of(open_source(tmp_path), "gguf")


SAMPLING = {"temperature": 0.7, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}


def same_words(first: TensorSource, second: TensorSource) -> None:
    one, other = load_tokenizer(first), load_tokenizer(second)
    for parse_special in (False, True):
        ids = [
            each.encode(TEXT, add_special_tokens=True, parse_special=parse_special)
            for each in (one, other)
        ]
        assert ids[0] == ids[1]
    assert one.end_ids == other.end_ids
    unknown = "<unk>"  # matched as a whole in folders alone
    added = [{k: i for k, i in each.added_tokens.items() if k != unknown} for each in (one, other)]
    assert added[0] == added[1]
    turns = [Message(role="user", content="hi <|im_end|>")]
    spelled = [
        load_chat_template(source, tokenizer).render(turns).text
        for source, tokenizer in ((first, one), (second, other))
    ]
    assert spelled[0] == spelled[1]
    assert read_sampling_defaults(first).values == read_sampling_defaults(second).values


def test_a_folder_becomes_a_file_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "a", generation={"do_sample": True, **SAMPLING})
    own = open_source(tmp_path / "a")
    there = written(tmp_path / "a", tmp_path / "a.gguf")
    same_words(own, there)
    assert read_sampling_defaults(there).values == SAMPLING
    ids = [5, 80, 7, 200, 31, 9]
    assert np.abs(logits_of(own, ids) - logits_of(there, ids)).max() < 2e-5
    back = written(tmp_path / "a.gguf", tmp_path / "b", "safetensors")
    same_words(own, back)
    assert np.array_equal(logits_of(own, ids), logits_of(back, ids))


def test_a_quantised_file_becomes_a_folder_of_the_same_numbers(tmp_path: Path) -> None:
    kinds = {"attn_q": "Q4_1", "ffn_down": "Q6_K", "attn_v": "Q5_0", "ffn_up": "F16"}
    path = tmp_path / "a.gguf"
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256}
    write_gguf(path, block_types={k: BlockType(x) for k, x in kinds.items()}, num_heads=16, **sizes)
    own, there = open_source(path), written(path, tmp_path / "a", "safetensors")
    same_words(own, there)
    ids = [5, 80, 7, 200, 31, 9]
    assert np.abs(logits_of(own, ids) - logits_of(there, ids)).max() < 1e-4
    blocks = own.read("blk.0.ffn_down.weight")
    numbers = decode(BlockType.Q6_K, blocks, 256, 256)
    assert there.read("model.layers.0.mlp.down_proj.weight") == numbers.tobytes()


def test_fewer_bits_in_the_other_format_are_those_of_its_own(tmp_path: Path) -> None:
    """As if first written in that format, then quantised there."""
    write_safetensors(tmp_path / "a")
    write_gguf(tmp_path / "plain.gguf", block_types=BlockType.F32)
    kind = Types(BlockType.Q8_0)
    there = written(tmp_path / "a", tmp_path / "a.gguf", types=kind)
    expected = written(tmp_path / "plain.gguf", tmp_path / "b.gguf", types=kind)
    assert set(there.tensors) == set(expected.tensors)
    for name, info in expected.tensors.items():
        assert there.tensors[name].block_type == info.block_type
        assert there.read(name) == expected.read(name)


def test_a_normal_form_is_kept(tmp_path: Path) -> None:
    shape = write_safetensors(tmp_path / "a")
    file = {**tokenizer_json(shape), "normalizer": {"type": "NFC"}}
    (tmp_path / "a" / "tokenizer.json").write_text(json.dumps(file))
    own, there = open_source(tmp_path / "a"), written(tmp_path / "a", tmp_path / "a.gguf")
    back = written(tmp_path / "a.gguf", tmp_path / "b", "safetensors")
    ids = [
        load_tokenizer(one).encode("e\u0301", add_special_tokens=False, parse_special=False)
        for one in (own, there, back)
    ]
    assert ids[0] == ids[1] == ids[2]
    assert load_tokenizer(there).detokenize(ids[0]) == "\u00e9"


def test_a_normal_form_that_is_not_known_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", pairs={"insitu.tokenizer.normalizer": "NFKD"})
    with pytest.raises(UnsupportedModelError, match=r"insitu\.tokenizer\.normalizer.*NFKD"):
        load_tokenizer(open_source(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("changes", "others", "where"),
    [
        ({"normalizer": {"type": "NFKC"}}, {}, "normalizer"),
        ({"pre_tokenizer": {"type": "Punctuation"}}, {}, "pre_tokenizer"),
        ({}, {"eos_token_id": [1, 2, 3, 4]}, "eos_token_id"),
        ({}, {"penalty_alpha": 0.5}, "penalty_alpha"),
    ],
)
def test_what_a_file_cannot_say_of_words_is_refused(
    tmp_path: Path, changes: dict[str, Any], others: dict[str, Any], where: str
) -> None:
    shape = write_safetensors(tmp_path, generation=others)
    file = tokenizer_json(shape)
    if changes.get("pre_tokenizer"):
        own = file["pre_tokenizer"]
        cuts = [changes["pre_tokenizer"], *own.get("pretokenizers", [own])]
        changes = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**file, **changes}))
    with pytest.raises((ModelFileError, QuantizeError), match=where):
        converted(open_source(tmp_path), "gguf")


@pytest.mark.parametrize(
    ("pairs", "where"),
    [
        ({"tokenizer.ggml.pre": "superbpe"}, "tokenizer.ggml.pre"),
        ({"general.sampling.mirostat": 2}, "mirostat"),
    ],
)
def test_what_a_folder_cannot_say_of_words_is_refused(
    tmp_path: Path, pairs: dict[str, Any], where: str
) -> None:
    write_gguf(tmp_path / "a.gguf", pairs=pairs)
    with pytest.raises((ModelFileError, QuantizeError), match=where):
        converted(open_source(tmp_path / "a.gguf"), "safetensors")


def spelled_by_scores(**changes: Any) -> dict[str, Any]:
    """The pairs of such a vocabulary, in a model of ``ROWS``."""
    pairs = {"tokenizer.ggml.pre": None, "tokenizer.ggml.merges": None, **values(**changes)}
    return {**pairs, "tokenizer.ggml.padding_token_id": None, "tokenizer.ggml.add_bos_token": True}


# As many rows as that vocabulary has tokens.
ROWS = Words(tuple(f"x{i}" for i in range(len(tiny_sentencepiece.ID) - len(Words()))))


@pytest.mark.parametrize(("model", "has_space"), [("llama", False), ("llama", True), ("t5", True)])
def test_a_vocabulary_by_scores_goes_there_and_back(
    model: str, has_space: bool, tmp_path: Path
) -> None:
    types = values()["tokenizer.ggml.token_type"]
    other = 1 if model == "t5" else 5
    types = [other if kind == 4 and i > 262 else kind for i, kind in enumerate(types)]
    named = {"model": model, "unknown_token_id": 0, "add_eos_token": False}
    pairs = spelled_by_scores(add_space_prefix=has_space, token_type=types, **named)
    write_gguf(tmp_path / "a.gguf", pairs=pairs, vocabulary=ROWS)
    own = open_source(tmp_path / "a.gguf")
    there = written(tmp_path / "a.gguf", tmp_path / "b", "safetensors")
    same_words(own, there)
    back = written(tmp_path / "b", tmp_path / "b.gguf")
    same_words(own, back)
    assert back.metadata.integers("tokenizer.ggml.token_type") == types
    assert np.array_equal(logits_of(own, [5, 80, 7, 200]), logits_of(back, [5, 80, 7, 200]))


def test_a_vocabulary_that_merges_another_way_there_is_refused(tmp_path: Path) -> None:
    """Pieces of one score go from the left, and a list of merges has an order."""
    pairs = spelled_by_scores(scores=[0.0] * len(ROWS))
    write_gguf(tmp_path / "a.gguf", pairs=pairs, vocabulary=ROWS)
    with pytest.raises(UnsupportedModelError, match="comes out otherwise by a list"):
        converted(open_source(tmp_path / "a.gguf"), "safetensors")


def test_a_refusal_says_what_keeps_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", pairs={"tokenizer.ggml.pre": "superbpe"})
    with pytest.raises(UnsupportedModelError, match=r"\(a GGUF file keeps it\)"):
        converted(open_source(tmp_path / "a.gguf"), "safetensors")


def test_half_a_character_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text())
    template = {"chat_template": "{{ 'a\ud800' }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**told, **template}))
    with pytest.raises(UnsupportedModelError, match=r"chat_template: .*ud800.* no Unicode text"):
        converted(open_source(tmp_path), "gguf")


def test_the_verb_takes_a_format(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    target, options = tmp_path / "b", ("--type", "q8_0", "--method", "nearest")
    done = insitu("quantize", tmp_path / "a.gguf", target, *options, "--format", "safetensors")
    assert done.returncode == 0, done.stderr
    told = json.loads((target / "config.json").read_text())
    assert told["quantization_config"]["format"] == "pack-quantized"
    same_words(open_source(tmp_path / "a.gguf"), open_source(target))


@pytest.mark.model
def test_a_real_model_is_the_same_in_the_other_format(smollm2_path: Path) -> None:
    own = open_source(smollm2_path)
    there = converted(own, "safetensors")
    same_words(own, there)
    ids = load_tokenizer(own).encode(TEXT, add_special_tokens=False, parse_special=True)
    assert np.abs(logits_of(own, ids) - logits_of(there, ids)).max() < 2e-4


@pytest.mark.slow  # 250 MB, which no catalogue of ours fetches
def test_gemmas_vocabulary_goes_there_and_back(models_dir: Path) -> None:
    own = open_source(models_dir / "gemma-3-270m-Q4_K_M.gguf")
    there = converted(own, "safetensors")
    back = converted(there, "gguf")
    library = Library.from_str((there.file("tokenizer.json") or b"").decode())
    tokenizers = [load_tokenizer(source) for source in (there, back)]
    for row in rows("gemma-3-270m-Q4_K_M"):
        assert library.encode(row["text"]).ids == row["prompt_ids"]
        for one in tokenizers:
            ids = one.encode(row["text"], add_special_tokens=True, parse_special=False)
            assert ids == row["prompt_ids"]
    assert [back.values[key] for key in KEPT] == [own.metadata.boolean(key) for key in KEPT]
