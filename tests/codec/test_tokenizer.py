"""Tokenizers of both formats: round trips, typed prompts, faults that name their key."""

from __future__ import annotations

import time
from typing import Any

import pytest
from codec import tiny_vocabulary as tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from insitu.codec.byte_map import byte_characters
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.codec.vocabulary import MergeFault, build_bpe
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError, UnsupportedModelError

TOKENIZER = tiny.tiny_tokenizer()
ID = {piece: i for i, piece in enumerate(tiny.pieces())}
TEXTS = [
    "Größe 7", "a\r\nb", "\t\n \r", "e\u0301", "\u00e9", "\U0001f469\u200d\U0001f4bb", "日本", "\0",
    " lead", " trail ", "\ufeffx", "hello world 123 \u00ff|\u00e9", "alpha\0omega", "",
]  # fmt: skip


def encode(
    text: str, *, parse_special: bool = False, tokenizer: Tokenizer = TOKENIZER
) -> list[int]:
    """Ids without a beginning or end."""
    return tokenizer.encode(text, add_special_tokens=False, parse_special=parse_special)


def folder_tokenizer(file: dict[str, Any], **others: Any) -> Tokenizer:
    """The tokenizer of a folder."""
    return load_tokenizer(tiny.folder(file, **others))  # type: ignore[arg-type]


def test_byte_map_is_the_libraries() -> None:
    assert set(byte_characters().values()) == set(ByteLevel.alphabet())


@pytest.mark.parametrize("parse_special", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_is_exact(text: str, parse_special: bool) -> None:
    assert TOKENIZER.detokenize(encode(text, parse_special=parse_special)) == text


@given(st.text())
def test_round_trip_of_any_text(text: str) -> None:
    assert TOKENIZER.detokenize(encode(text)) == text
    assert b"".join(map(TOKENIZER.token_bytes, encode(text))).decode() == text


def test_added_token_bytes_never_go_through_the_byte_map() -> None:
    assert TOKENIZER.token_bytes(ID["Größe"]) == "Größe".encode()
    assert TOKENIZER.token_bytes(ID["ÿ|é"]) == "ÿ|é".encode()
    assert TOKENIZER.token_bytes(ID["Ġwo"]) == b" wo"


def test_added_tokens_are_recognised_only_when_asked() -> None:
    text = "hello<|im_end|><tool_call>Größe"
    assert not set(encode(text)) & set(TOKENIZER.added_tokens.values())
    assert encode(text, parse_special=True)[1:] == [
        ID["<|im_end|>"],
        ID["<tool_call>"],
        ID["Größe"],
    ]


def test_the_longest_added_token_wins() -> None:
    assert encode("<|im_end|>>", parse_special=True) == [ID["<|im_end|>>"]]
    assert encode("<|imx", parse_special=True) == [ID["<|im"], ID["x"]]


def test_padding_is_never_recognised_and_stands_for_nothing() -> None:
    assert ID["[PAD0]"] not in encode("[PAD0]", parse_special=True)
    assert TOKENIZER.token_bytes(ID["[PAD0]"]) == b""


@pytest.mark.parametrize("token_id", [-1, len(tiny.pieces()), 2**40])
def test_ids_outside_are_refused(token_id: int) -> None:
    with pytest.raises(Refusal, match="not in the vocabulary"):
        TOKENIZER.detokenize([token_id])


def test_control_tokens_can_be_hidden() -> None:
    ids = encode("hello<|im_end|><tool_call>", parse_special=True)
    assert TOKENIZER.detokenize(ids, show_control=False) == "hello<tool_call>"
    assert TOKENIZER.detokenize(ids, show_control=True) == "hello<|im_end|><tool_call>"
    assert TOKENIZER.is_control(ID["<|im_end|>"])
    assert not TOKENIZER.is_control(ID["<tool_call>"])


def test_special_tokens_are_added_as_the_file_says() -> None:
    bos, eos = ID["<|im_start|>"], ID["<|im_end|>"]
    both = tiny.tiny_tokenizer(add_bos_token=True, add_eos_token=True)
    assert both.encode("ab", add_special_tokens=True, parse_special=False) == [bos, ID["ab"], eos]
    assert both.encode("ab", add_special_tokens=False, parse_special=False) == [ID["ab"]]
    assert TOKENIZER.encode("ab", add_special_tokens=True, parse_special=False) == [ID["ab"]]
    by_family = tiny.tiny_tokenizer(pre="llama-bpe", add_bos_token=None)
    assert by_family.encode("ab", add_special_tokens=True, parse_special=False) == [bos, ID["ab"]]


def test_end_ids_come_from_the_metadata_alone() -> None:
    assert TOKENIZER.end_ids == {ID["<|im_end|>"]}
    more = tiny.tiny_tokenizer(eot_token_id=ID["<|endoftext|>"])
    assert more.end_ids == {ID["<|im_end|>"], ID["<|endoftext|>"]}


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "ab123 'S's\n\n x", ["ab", "123", " '", "S", "'s", "\n\n", " x"]),
        ("smollm", "ab123 x", ["ab", "1", "2", "3", " x"]),
        ("qwen2", "ab123 'S\r\n !\n x", ["ab", "1", "2", "3", " '", "S", "\r\n", " !\n", " x"]),
        ("llama-bpe", "ab1234 (x)", ["ab", "123", "4", " (", "x", ")"]),
    ],
)
def test_families_cut_words_their_own_way(pre: str, text: str, words: list[str]) -> None:
    tokenizer = tiny.tiny_tokenizer(pre=pre)
    whole = [i for word in words for i in encode(word, tokenizer=tokenizer)]
    assert encode(text, tokenizer=tokenizer) == whole


@pytest.mark.parametrize("character", ["\ud83d", "\ude00 tail", "a\ude00\ud83d"])
def test_unpaired_surrogates_are_refused(character: str) -> None:
    with pytest.raises(Refusal, match="surrogate"):
        encode(character)


def test_a_character_without_a_token_is_refused_not_dropped() -> None:
    character = byte_characters()[4]
    tokens = [piece if piece != character else "<hole>" for piece in tiny.pieces()]
    tokenizer = tiny.tiny_tokenizer(tokens=tokens)
    with pytest.raises(Refusal, match=r"cannot spell U\+0004"):
        encode("a\x04b", tokenizer=tokenizer)


def test_typed_prompt_recognises_only_whole_template_tokens() -> None:
    end = ID["<|im_end|>"]
    assert TOKENIZER.encode_typed([("<|im_end|>", True)]) == [end]
    assert TOKENIZER.encode_typed([("<|im_", True), ("", False), ("end|>", True)]) == [end]
    for at in range(len("<|im_end|>")):
        pieces = [("<|im_end|>"[:at], True), ("<|im_end|>"[at:], False), ("x", True)]
        ids = TOKENIZER.encode_typed(pieces)
        assert end not in ids
        assert TOKENIZER.detokenize(ids) == "<|im_end|>x"


def test_text_between_tokens_is_encoded_in_one_piece() -> None:
    ids = TOKENIZER.encode_typed([("<|im_start|>he", True), ("ll", False), ("o<|im_end|>", True)])
    assert ids == [ID["<|im_start|>"], ID["hello"], ID["<|im_end|>"]]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"scores": [1]}, "scores"),
        ({"scores": [0.5]}, "scores"),
        ({"scores": "x"}, "scores"),
        ({"token_type": [1]}, "token_type"),
        ({"token_type": [1.0] * len(tiny.pieces())}, "token_type"),
        ({"token_type": [9] * len(tiny.pieces())}, "token_type"),
        ({"token_type": [6] * len(tiny.pieces())}, "token_type"),
        ({"eos_token_id": 4294967295}, "eos_token_id"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"eot_token_id": "2"}, "eot_token_id"),
        ({"merges": ["he"]}, r"merges\[0\]"),
        ({"merges": ["h e", "h e l"]}, r"merges\[1\]"),
        ({"merges": ["h e", " e"]}, r"merges\[1\]"),
        ({"merges": ["h e", "q q"]}, r"merges\[1\]"),
        ({"merges": ["nope e"]}, r"merges\[0\]"),
        ({"merges": None}, "merges"),
        ({"merges": 5}, "merges"),
        ({"tokens": None}, "tokens"),
        ({"tokens": []}, "tokens"),
        ({"tokens": [b"\xff", *map(str.encode, tiny.pieces()[1:])]}, r"tokens\[0\]"),
        ({"tokens": ["a", *tiny.pieces()[1:]]}, "tokens"),
        ({"tokens": ["", *tiny.pieces()[1:]]}, r"tokens\[0\]"),
        ({"add_bos_token": 1}, "add_bos_token"),
        ({"add_bos_token": True, "bos_token_id": None}, "add_bos_token"),
        ({"model": None}, "model"),
        ({"model": ["gpt2"]}, "model"),
    ],
)
def test_faults_name_their_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=f"tokenizer.ggml.{key}"):
        tiny.tiny_tokenizer(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"model": "rwkv"}, "'rwkv'"),
        ({"pre": "telepathic"}, "'telepathic'"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        tiny.tiny_tokenizer(**changes)


def test_merging_never_spells_an_added_token() -> None:
    tokens = [*tiny.pieces(), "xyz"]
    types = [*tiny.metadata_values()["tokenizer.ggml.token_type"], 3]
    tokenizer = tiny.tiny_tokenizer(tokens=[*tokens, "yz"], token_type=[*types, 1],
                                    merges=[*tiny.MERGES, "y z", "x yz"])  # fmt: skip
    assert encode("xyz", tokenizer=tokenizer) == [ID["x"], len(tokens)]
    whole_words = tiny.tiny_tokenizer(pre="llama-bpe", tokens=tokens, token_type=types)
    assert encode("xyz", tokenizer=whole_words) == [ID["x"], ID["y"], ID["z"]]


@settings(max_examples=50)
@given(st.text(alphabet="helo wabcuser<|im_end>Größe\n1é日"))
def test_both_formats_give_the_same_ids(text: str) -> None:
    from_folder = FOLDER_TOKENIZER
    for parse_special in (False, True):
        assert encode(text, parse_special=parse_special, tokenizer=from_folder) == encode(
            text, parse_special=parse_special
        )


FOLDER_TOKENIZER = folder_tokenizer(tiny.tokenizer_json())


def test_folder_ends_and_padding() -> None:
    config = {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"}
    one = folder_tokenizer(tiny.tokenizer_json(), tokenizer_config=config)
    assert one.end_ids == {ID["<|im_end|>"]}
    assert one.special_texts == {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    generation = {"eos_token_id": [ID["<|endoftext|>"], ID["<|im_end|>"]]}
    two = folder_tokenizer(tiny.tokenizer_json(), generation_config=generation)
    assert two.end_ids == {ID["<|endoftext|>"], ID["<|im_end|>"]}
    # Without a generation config a model's own config says it, as elsewhere.
    three = folder_tokenizer(tiny.tokenizer_json(), config=generation)
    assert three.end_ids == two.end_ids
    four = folder_tokenizer(tiny.tokenizer_json(), config=generation, generation_config={})
    assert four.end_ids == set()
    assert two.vocab_size == len(tiny.pieces())
    assert two.token_bytes(len(tiny.pieces()) - 1) == b""


def test_folder_template_processing_adds_a_beginning() -> None:
    processor = {"type": "Sequence", "processors": [
        {"type": "ByteLevel"},
        {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}}]},
    ]}  # fmt: skip
    tokenizer = folder_tokenizer(tiny.tokenizer_json(post_processor=processor))
    ids = tokenizer.encode("ab", add_special_tokens=True, parse_special=False)
    assert ids == [ID["<|im_start|>"], ID["ab"]]


@pytest.mark.parametrize("ids", [[5, 6], [], ["5"], [-1], [10**6], 5])
def test_a_template_may_list_the_ids_it_puts_there(ids: Any) -> None:
    single = [{"SpecialToken": {"id": "both"}}, {"Sequence": {"id": "A"}}]
    processor = {"type": "TemplateProcessing", "single": single,
                 "special_tokens": {"both": {"id": "both", "ids": ids}}}  # fmt: skip
    file = tiny.tokenizer_json(post_processor=processor)
    if ids in ([5, 6], []):
        got = folder_tokenizer(file).encode("ab", add_special_tokens=True, parse_special=False)
        assert got == [*ids, ID["ab"]]
        return
    with pytest.raises(ModelFileError, match=r"post_processor\.special_tokens\.both\.ids"):
        folder_tokenizer(file)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"tokenizer_config": {"added_tokens_decoder": [5]}}, "added_tokens_decoder"),
        ({"tokenizer_config": {"additional_special_tokens": "x"}}, "additional_special_tokens"),
        (
            {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": 1}},
            "tokenizer_config.json add_bos_token",
        ),
    ],
)
def test_faults_of_the_other_files_name_their_key(other: Any, named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        folder_tokenizer(tiny.tokenizer_json(), **other)


def test_an_expression_that_never_ends_is_a_refusal() -> None:
    def cut_by(expression: str) -> Tokenizer:
        split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        steps = [{**split, "invert": False}, {**byte_level, "trim_offsets": True}]
        processor = {"type": "Sequence", "pretokenizers": steps}
        return folder_tokenizer(tiny.tokenizer_json(pre_tokenizer=processor))

    for expression, character in (("(a+)+b", "a"), (r"(\s+)+!", " ")):
        with pytest.raises(ModelFileError, match=rf"never ends on a row of '{character}'"):
            cut_by(expression)
    # What is not found by then is a refusal of the text.
    tokenizer = cut_by("((ab)+)+c")
    assert encode("abc", tokenizer=tokenizer) == [ID["abc"]]
    with pytest.raises(Refusal, match="cannot cut this text"):
        encode("ab" * 1000, tokenizer=tokenizer)


def test_a_declared_normaliser_is_kept_and_forges_nothing() -> None:
    tokenizer = folder_tokenizer(tiny.tokenizer_json(normalizer={"type": "NFC"}))
    assert tokenizer.detokenize(encode("e\u0301", tokenizer=tokenizer)) == "\u00e9"
    forged = "Gro\u0308ße"
    assert ID["Größe"] not in encode(forged, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "normalizer"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre_tokenizer"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "pre_tokenizer"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}}}, "model.type"),
        ({"decoder": {"type": "Metaspace", "replacement": "▁"}}, "decoder.type"),
        (
            {"decoder": {"type": "Sequence", "decoders": [{"type": "Strip", "content": " "}]}},
            "decoder.type",
        ),
        ({"model": None}, "model"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "model.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 10**7}, "merges": []}}, "model.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 10**6}, "merges": []}}, "model.vocab"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, r"model.merges\[0\]"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]}}, r"model.merges\[0\]"),
        ({"added_tokens": [{"id": 0, "content": "z"}]}, "added_tokens"),
        ({"added_tokens": [{"id": 900, "content": "z", "single_word": True}]}, "single_word"),
        ({"added_tokens": {"z": 1}}, "added_tokens"),
        ({"added_tokens": [{"id": 300, "content": "z", "special": "yes"}]}, "special"),
        ({"model": {"type": ["BPE"], "vocab": {"a": 0}, "merges": []}}, "model.type"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "ignore_merges": "no"}},
            "model.ignore_merges",
        ),
        ({"decoder": {"type": ["ByteLevel"]}}, "decoder.type"),
        ({"normalizer": {"type": {"a": 1}}}, "normalizer.type"),
        ({"post_processor": {"type": ["x"]}}, "post_processor.type"),
        ({"post_processor": {"type": "TemplateProcessing", "single": 5}}, "post_processor.single"),
        ({"post_processor": {"type": "BertProcessing", "cls": ["Größe", 5]}}, "not its own"),
    ],
)
def test_folder_faults_name_their_place(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ModelFileError, match=where):
        folder_tokenizer(tiny.tokenizer_json(**changes))


@pytest.mark.parametrize("ends", [[10**6], -1, "2", [True]])
def test_folder_end_ids_must_be_ids(ends: Any) -> None:
    with pytest.raises(ModelFileError, match=r"generation_config\.json eos_token_id"):
        folder_tokenizer(tiny.tokenizer_json(), generation_config={"eos_token_id": ends})


@pytest.mark.parametrize("unit", ["a", " ", "1", "\n", "!", "é", "<|im", "\u200b", "'"])
@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_time_is_linear_in_hostile_text(unit: str, pre: str) -> None:
    tokenizer = tiny.tiny_tokenizer(pre=pre)
    start = time.perf_counter()
    encode(unit * 100_000, parse_special=True, tokenizer=tokenizer)
    assert time.perf_counter() - start < 5


@given(st.text())
def test_a_text_has_no_fewer_tokens_than_its_length_says(text: str) -> None:
    assert TOKENIZER.least_num_tokens(text) <= len(encode(text))


def test_a_normalized_text_may_become_shorter() -> None:
    file = tiny.tokenizer_json()
    plain = folder_tokenizer(file).least_num_tokens("\u1112\u1161\u11ab" * 1000)
    composed = folder_tokenizer({**file, "normalizer": {"type": "NFC"}})
    text = "\u1112\u1161\u11ab" * 1000
    assert composed.least_num_tokens(text) <= min(plain, len(encode(text, tokenizer=composed)))


@pytest.mark.parametrize("right", ["b", "bcd"])
def test_a_merge_that_makes_more_than_the_longest_token_is_named(right: str) -> None:
    with pytest.raises(MergeFault, match="merge 1: 'ab"):
        build_bpe({"a": 0, "b": 1, "bcd": 2, "aa": 3}, [("a", "a"), ("a", right)], {})
