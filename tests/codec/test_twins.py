"""Vocabularies said in the other format: the same ids, by our readers and by the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from codec import tiny_sentencepiece as tiny
from codec import tiny_vocabulary
from codec.llama_sdist import models_of_llama_cpp
from codec.test_folders import of_bytes
from codec.test_llama_vocabularies import expected
from codec.tiny_vocabulary import FakeSource
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from insitu.codec.piece_merger import PieceMerger
from insitu.codec.piece_merges import NoMergesFault, merges_of, scores_of
from insitu.codec.tokenizer import Tokenizer, load_tokenizer, read_vocabulary
from insitu.codec.twin_folder import folder_files
from insitu.codec.twin_gguf import gguf_values
from insitu.weights.errors import ModelFileError
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable

TEXTS = [
    "Größe 7", "a\r\nb", "\t\n \r", "e\u0301", "\U0001f469\u200d\U0001f4bb", "日本", "\0", "▁",
    " lead", " trail ", "   three", "hello world", "alpha\0omega", "a  b", "aaaaaaa", "abababab ab",
    "<tool_call>hello", "hello<s> world</s>", "<start_of_turn>a<end_of_turn>", "on a hill", "",
]  # fmt: skip
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}


def values(**changes: Any) -> dict[str, Any]:
    """A vocabulary whose pieces all have letters that are pieces."""
    tokens = ["st" if piece == "<s" else piece for piece in tiny.pieces()]
    return tiny.metadata_values(**{"tokens": tokens, **changes})


def spaced(**changes: Any) -> dict[str, Any]:
    """Texts matched as a whole are none of it: after those the library puts a space as well."""
    types = values()["tokenizer.ggml.token_type"]
    places = [tiny.ID[text] for text in tiny.TEXTS]
    types = [5 if i in places else kind for i, kind in enumerate(types)]
    return values(token_type=types, **changes)


def bare(**changes: Any) -> dict[str, Any]:
    """No space is put before a text."""
    return values(add_space_prefix=False, **changes)


def metaspace(scheme: str) -> Callable[..., dict[str, Any]]:
    """As of a folder with Metaspace."""
    return lambda **changes: {**spaced(**changes), "insitu.tokenizer.metaspace": scheme}


KINDS = {
    "spaced": spaced,
    "bare": bare,
    "first": metaspace("first"),
    "always": metaspace("always"),
}


NFKC = {"type": "NFKC"}
UNIGRAM = {"model": "t5", "unknown_token_id": 0}


def folder_of(source: Any) -> FakeSource:
    """The folder of a GGUF file's vocabulary."""
    known = read_vocabulary(source)
    files = folder_files(source, known)
    files["config.json"] = json.dumps({"eos_token_id": sorted(known.end_ids)}).encode()
    return FakeSource("safetensors", {"vocab_size": len(known.pieces)}, files, Path("folder"))


def file_of(folder: Any) -> FakeSource:
    """The GGUF file of a folder's vocabulary."""
    known = read_vocabulary(folder)
    return FakeSource(values=gguf_values(folder, known, len(known.pieces)))


def changed(folder: FakeSource, change: Callable[[dict[str, Any]], object]) -> FakeSource:
    """The folder with another tokenizer.json."""
    file = json.loads(folder.files["tokenizer.json"])
    change(file)
    return FakeSource(
        "safetensors",
        folder.values,
        {**folder.files, "tokenizer.json": json.dumps(file).encode()},
        folder.path,
    )


def ids_of(tokenizer: Tokenizer, text: str, **asked: bool) -> list[int]:
    """Ids of what a template may write."""
    return tokenizer.encode(text, **{"add_special_tokens": False, "parse_special": True, **asked})


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_by_scores_goes_there_and_back(kind: str) -> None:
    source = FakeSource(values=KINDS[kind]())
    made = folder_of(source)
    own, there, back = map(load_tokenizer, (source, made, file_of(made)))  # type: ignore[arg-type]
    library = Library.from_str(made.files["tokenizer.json"].decode())
    for text in TEXTS:
        ids = ids_of(own, text)
        assert ids == ids_of(there, text) == ids_of(back, text), text
        assert ids == library.encode(text, add_special_tokens=False).ids, text
        plain = [ids_of(one, text, parse_special=False) for one in (own, there, back)]
        assert plain[0] == plain[1] == plain[2], text
        assert own.detokenize(ids) == there.detokenize(ids) == back.detokenize(ids)
    around = [ids_of(one, "hello", add_special_tokens=True) for one in (own, there, back)]
    assert around[0] == around[1] == around[2] == library.encode("hello").ids
    assert own.end_ids == there.end_ids == back.end_ids
    assert own.special_texts == there.special_texts == back.special_texts
    assert own.table().token_bytes[5:] == back.table().token_bytes[5:]


@pytest.mark.parametrize("is_metaspace", [False, True])
def test_likeliest_pieces_go_there_and_back(is_metaspace: bool) -> None:
    library = of_bytes(metaspace=is_metaspace)
    file = json.loads(library.to_str())
    more = {"special_tokens_map": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}}
    source = tiny_vocabulary.folder(file, **more)
    there = file_of(source)
    assert there.values["tokenizer.ggml.model"] == "t5"
    back = folder_of(there)
    again = Library.from_str(back.files["tokenizer.json"].decode())
    own, second, third = map(load_tokenizer, (source, there, back))  # type: ignore[arg-type]
    for text in [*TEXTS, "the dog the dog numbers: 日本語 café", "a<s>hello</s> the", "<0x41>"]:
        ids = ids_of(own, text)
        assert ids == ids_of(second, text) == ids_of(third, text), text
        assert ids == library.encode(text, add_special_tokens=False).ids, text
        assert ids == again.encode(text, add_special_tokens=False).ids, text
        assert own.detokenize(ids) == second.detokenize(ids)
    assert own.table().token_bytes[1:] == second.table().token_bytes[1:]


def test_markers_that_take_blanks_go_there_and_back() -> None:
    source = folder_of(FakeSource(values=bare()))

    def change(file: dict[str, Any]) -> None:
        by_text = {token["content"]: token for token in file["added_tokens"]}
        by_text["<start_of_turn>"]["rstrip"] = True
        by_text["<tool_call>"]["lstrip"] = True

    folder = changed(source, change)
    there = file_of(folder)
    assert there.values["insitu.tokenizer.lstrip"] == [tiny.ID["<tool_call>"]]
    assert there.values["insitu.tokenizer.rstrip"] == [tiny.ID["<start_of_turn>"]]
    back = folder_of(there)
    own, second, third = map(load_tokenizer, (folder, there, back))  # type: ignore[arg-type]
    for text in ("a \n<tool_call> b", "<start_of_turn>\n hello <end_of_turn>\n"):
        ids = ids_of(own, text)
        assert ids == ids_of(second, text) == ids_of(third, text)
        assert ids != ids_of(load_tokenizer(source), text)  # type: ignore[arg-type]


@pytest.mark.parametrize("ids", [[tiny.ID["he"]], [len(tiny.ID)], ["<s>"]])
def test_what_takes_blanks_must_be_a_marker(ids: list[Any]) -> None:
    pairs = {**bare(), "insitu.tokenizer.rstrip": ids}
    with pytest.raises(ModelFileError, match=r"insitu\.tokenizer\.rstrip"):
        load_tokenizer(FakeSource(values=pairs))  # type: ignore[arg-type]


def test_a_file_that_comes_back_has_its_types_and_flags() -> None:
    own = bare(add_eos_token=True)
    back = file_of(folder_of(FakeSource(values=own))).values
    for name in ("model", "token_type", "tokens", "add_eos_token", "add_space_prefix"):
        assert back[f"tokenizer.ggml.{name}"] == own[f"tokenizer.ggml.{name}"], name
    assert back["tokenizer.ggml.unknown_token_id"] == 0


RUNS = ["a" * size for size in range(1, 17)]
TIED = {**dict.fromkeys(RUNS, -1e9), "b": -3.0, "ab": -1.0, "bab": -2.0}
DISTINCT = {piece: tiny.score(piece) for piece in [*tiny.LETTERS, *tiny.MERGED] if piece != "<s"}
DISTINCT |= {letter: -100.0 - i for i, letter in enumerate(tiny.LETTERS)}


@pytest.mark.parametrize("scored", [DISTINCT, TIED])
def test_listed_merges_do_what_scores_do(scored: dict[str, float]) -> None:
    """Also where runs of one character, as Llama's of blanks, have one score."""
    ids = {piece: i for i, piece in enumerate(scored)}
    scores = list(scored.values())
    merges = merges_of(ids, scores)
    found = scores_of(ids, merges)
    again = [found[piece] for piece in scored]
    assert merges_of(ids, again) == merges
    byte_ids = {byte: 1000 + byte for byte in range(256)}
    first, second = PieceMerger(ids, scores, byte_ids), PieceMerger(ids, again, byte_ids)
    vocab = {**ids, **{f"<0x{b:02X}>": i for b, i in byte_ids.items()}}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True}
    library = Library.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))

    @given(
        st.text(alphabet="▁abhelowrdtn日ö", max_size=40) | st.text(alphabet="aaaab", max_size=80)
    )
    @settings(max_examples=200)
    def check(text: str) -> None:
        assert first.encode(text) == second.encode(text) == library.encode(text).ids

    check()


def test_gemmas_idle_split_and_merges_as_text_are_understood() -> None:
    folder = folder_of(FakeSource(values=bare()))
    own = load_tokenizer(folder)  # type: ignore[arg-type]

    def change(file: dict[str, Any]) -> None:
        file["pre_tokenizer"] = {**SPLIT, "invert": False}
        file["model"]["merges"] = list(map(" ".join, file["model"]["merges"]))

    there = load_tokenizer(file_of(changed(folder, change)))  # type: ignore[arg-type]
    for text in TEXTS:
        assert ids_of(own, text) == ids_of(there, text), text


def _model(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda file: file["model"].update(changes)


def _cut(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda file: file["pre_tokenizer"].update(changes)


def _without_bytes(file: dict[str, Any]) -> None:
    file["model"].update(byte_fallback=False, unk_token=None)


@pytest.mark.parametrize(
    ("kind", "change", "where"),
    [
        (
            "bare",
            lambda file: file["model"]["merges"].pop(),
            "is not there once, as merging by scores",
        ),
        ("bare", _model(ignore_merges=True), "ignore_merges"),
        ("bare", _without_bytes, "model.unk_token: is missing"),
        ("bare", lambda file: file.update(normalizer={"type": "NFKC"}), "normalizer"),
        ("of bytes", lambda file: file["model"]["vocab"].pop(10), "model.byte_fallback.*all bytes"),
        ("of bytes", lambda file: file.update(normalizer=NFKC), "normalizer"),
        ("first", _cut(split=True), "pre_tokenizer.split.*u2581on.*u2581a"),
        ("first", _cut(replacement="_"), "pre_tokenizer.replacement"),
    ],
)
def test_what_a_file_has_no_key_for_is_refused(kind: str, change: Any, where: str) -> None:
    if kind == "of bytes":
        source = tiny_vocabulary.folder(json.loads(of_bytes(metaspace=True).to_str()))
    else:
        source = folder_of(FakeSource(values=KINDS[kind]()))
    with pytest.raises(ModelFileError, match=where):
        file_of(changed(source, change))


def _renamed(old: str, new: str) -> list[str]:
    return [new if piece == old else piece for piece in values()["tokenizer.ggml.tokens"]]


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        (
            {"tokens": _renamed("st", "<s")},
            r"tokenizer\.ggml\.tokens: '<s' is a piece, and its '<'",
        ),
        (
            {"tokens": _renamed("<0x0A>", "<0x0a>")},
            r"tokens\[15\]: is '<0x0a>', in a folder <0x0A>",
        ),
        ({"model": "bert"}, "'bert' is not written as tokenizer.json; written are 'gpt2', 'llama'"),
        ({"model": "t5", "remove_extra_whitespaces": True}, "remove_extra_whitespaces: is not"),
        ({"model": "t5", "precompiled_charsmap": [0] * 16}, "precompiled_charsmap: is not"),
        (
            {"model": "t5", "unknown_token_id": 0, "token_type": [2, 5] + [1] * (len(tiny.ID) - 2)},
            r"tokens\[1\]: stands",
        ),
        (
            {"model": "t5", "unknown_token_id": tiny.ID["he"]},
            "unknown_token_id: is a token of text",
        ),
        ({"scores": [float("nan")] * len(tiny.ID)}, "scores"),
    ],
)
def test_what_a_folder_has_no_words_for_is_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ModelFileError, match=where):
        folder_of(FakeSource(values=bare(**changes)))


def test_a_metaspace_that_is_not_known_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"insitu\.tokenizer\.metaspace: 'last'"):
        load_tokenizer(FakeSource(values=metaspace("last")()))  # type: ignore[arg-type]


class _Counting(dict[str, int]):
    """Counts how often it is asked for a piece."""

    count = 0

    def __contains__(self, piece: object) -> bool:
        self.count += 1
        return super().__contains__(piece)


def test_a_long_piece_is_not_copied_once_a_letter() -> None:
    long = "ab" * 50_000
    ids = _Counting({piece: i for i, piece in enumerate(["a", "b", "ab", long])})
    assert merges_of(ids, [0.0, 0.0, 1.0, 2.0]) == [("a", "b")]
    assert ids.count < 100


def test_pieces_of_one_score_that_meet_are_refused() -> None:
    """The leftmost of them goes first, and a list has one of them first anywhere."""
    scored = {"a": -9.0, "b": -9.0, "c": -9.0, "ab": -1.0, "bc": -1.0}
    ids = {piece: i for i, piece in enumerate(scored)}
    assert merges_of(ids, list(scored.values())) == [("a", "b"), ("b", "c")]
    other = {piece: i for i, piece in enumerate(sorted(scored, reverse=True))}
    with pytest.raises(NoMergesFault, match="'abc' comes out otherwise by a list"):
        merges_of(other, [scored[piece] for piece in other])


def test_mixed_merges_are_of_one_score_or_of_none() -> None:
    ids = {piece: i for i, piece in enumerate(["a", "aa", "aaa", "aaaa"])}
    tied = merges_of(ids, [0.0] * 4)
    assert tied == [("aaa", "a"), ("aa", "aa"), ("aa", "a"), ("a", "aaa"), ("a", "aa"), ("a", "a")]
    assert scores_of(ids, tied) == {"aaaa": -1.0, "aaa": -1.0, "aa": -3.0, "a": -4.0}
    with pytest.raises(NoMergesFault, match="among those of another"):
        scores_of(ids, [tied[2], tied[0], *tied[3:4], tied[1], *tied[4:]])


@pytest.mark.slow  # a source distribution of 77 MB
@pytest.mark.parametrize("name", ["llama-spm", "phi-3"])
def test_a_real_vocabulary_is_the_same_in_a_folder(models_dir: Path, name: str) -> None:
    source = open_source(models_of_llama_cpp(models_dir) / f"ggml-vocab-{name}.gguf")
    folder = folder_of(source)
    there = load_tokenizer(folder)  # type: ignore[arg-type]
    library = Library.from_str(folder.files["tokenizer.json"].decode())
    for text, ids in expected(models_dir, name):
        assert there.encode(text, add_special_tokens=False, parse_special=False) == ids, text
        assert library.encode(text, add_special_tokens=False).ids == ids, text
