"""Other kinds of vocabulary in GGUF files: T5's, BERT's, Gemma 4's."""

from __future__ import annotations

import struct
from collections import deque
from typing import Any

import pytest
from codec.tiny_vocabulary import FakeSource

from insitu.codec.chars_map import CharsMap, CharsMapFault
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError

CONTROL = ["<s>", "<pad>", "</s>", "<mask>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer_of(model: str, pieces: list[str], types: list[int], **values: Any) -> Tokenizer:
    """A tokenizer from its metadata."""
    given = {"model": model, "tokens": pieces, "token_type": types, **values}
    keys = {f"tokenizer.ggml.{key}": value for key, value in given.items()}
    return load_tokenizer(FakeSource(values=keys))  # type: ignore[arg-type]


UNIGRAM = [
    *CONTROL,
    "<unk>",
    "▁",
    "▁hel",
    "▁hello",
    "lo",
    "▁fi",
    "x",
    "é",
    "a",
    "▁a",
    "aa",
    "<",
    "s",
    ">",
]
UNIGRAM_SCORES = [0.0] * 5 + [
    -3.0,
    -4.0,
    -5.0,
    -4.5,
    -4.0,
    -6.0,
    -6.0,
    -5.0,
    -5.5,
    -9.0,
    -7.0,
    -7.0,
    -7.0,
]


def unigram(**changes: Any) -> Tokenizer:
    """A small vocabulary of likely pieces."""
    values: dict[str, Any] = {
        "scores": UNIGRAM_SCORES, "bos_token_id": 0, "eos_token_id": 2, "unknown_token_id": 4,
        "add_bos_token": True, "add_eos_token": True, "remove_extra_whitespaces": True,
    }  # fmt: skip
    types = [3] * 4 + [2] + [1] * (len(UNIGRAM) - 5)
    return tokenizer_of("t5", UNIGRAM, types, **{**values, **changes})


BERT = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "▁hello",
    "▁un",
    "able",
    "s",
    "▁,",
    "▁日",
    "▁e",
    "▁[",
    "▁cls",
    "▁]",
]


def bert(**changes: Any) -> Tokenizer:
    """A small vocabulary of words and their ends."""
    named = {
        "padding_token_id": 0,
        "unknown_token_id": 1,
        "cls_token_id": 2,
        "seperator_token_id": 3,
    }
    return tokenizer_of("bert", BERT, [3] * 4 + [1] * (len(BERT) - 4), **{**named, **changes})


GEMMA = [
    "<bos>",
    "<|turn>",
    "<|tool_call>",
    *BYTES,
    "▁",
    *"abht",
    "\n",
    "\n\n",
    "ab",
    "▁ab",
    "ab▁ab",
    "ht",
    "th",
]


def gemma4() -> Tokenizer:
    """A small vocabulary that merges by rank, over whole lines."""
    types = [3, 3, 4] + [6] * 256 + [1] * (len(GEMMA) - 259)
    merges = ["a b", "h t", "t h", "▁ ab", "ab ▁ab"]
    return tokenizer_of("gemma4", GEMMA, types, merges=merges, bos_token_id=0)


def spelled(tokenizer: Tokenizer, pieces: list[str], text: str, **asked: bool) -> list[str]:
    """Pieces of a text."""
    options = {"add_special_tokens": False, "parse_special": False, **asked}
    return [pieces[token_id] for token_id in tokenizer.encode(text, **options)]


def test_unigram_takes_the_likeliest_pieces() -> None:
    assert spelled(unigram(), UNIGRAM, "  hello   hello ") == ["▁hello", "▁hello"]
    assert spelled(unigram(), UNIGRAM, "aaa") == ["▁a", "aa"]
    assert spelled(unigram(), UNIGRAM, "hello", add_special_tokens=True) == [
        "<s>",
        "▁hello",
        "</s>",
    ]


def test_unigram_gives_the_unknown_token_once_for_what_it_cannot_spell() -> None:
    assert spelled(unigram(), UNIGRAM, "hello 日本") == ["▁hello", "▁", "<unk>"]


def test_unigram_keeps_blanks_where_the_file_says_so() -> None:
    tokenizer = unigram(remove_extra_whitespaces=False)
    assert spelled(tokenizer, UNIGRAM, "a  a") == ["▁a", "▁", "▁a"]
    bare = unigram(remove_extra_whitespaces=False, add_space_prefix=False)
    assert spelled(bare, UNIGRAM, "a a") == ["a", "▁a"]


def test_unigram_text_is_shown_without_its_dummy_space() -> None:
    tokenizer = unigram()
    ids = tokenizer.encode("hello hello", add_special_tokens=True, parse_special=False)
    assert tokenizer.detokenize(ids, show_control=False) == "hello hello"


def test_bert_cuts_words_into_the_longest_pieces() -> None:
    assert spelled(bert(), BERT, "Hello, UNABLEs") == ["▁hello", "▁,", "▁un", "able", "s"]
    assert spelled(bert(), BERT, "é日") == ["▁e", "▁日"]
    assert spelled(bert(), BERT, "hello zebra") == ["▁hello", "[UNK]"]
    assert spelled(bert(), BERT, "hello", add_special_tokens=True) == ["[CLS]", "▁hello", "[SEP]"]


def test_bert_keeps_capitals_where_the_file_says_so() -> None:
    assert spelled(bert(**{"normalizer.lowercase": False}), BERT, "hello Hello") == [
        "▁hello",
        "[UNK]",
    ]


def test_bert_text_is_shown_with_blanks_between_words() -> None:
    ids = bert().encode("hello, unables", add_special_tokens=True, parse_special=False)
    assert bert().detokenize(ids, show_control=False) == "hello , unables"


def test_gemma4_merges_by_rank_over_a_line() -> None:
    assert spelled(gemma4(), GEMMA, "ab ab") == ["ab▁ab"]
    assert spelled(gemma4(), GEMMA, "hth\n\nöb") == ["ht", "h", "\n\n", "<0xC3>", "<0xB6>", "b"]
    assert (
        gemma4().detokenize(gemma4().encode(" hö\n", add_special_tokens=False, parse_special=False))
        == " hö\n"
    )
    assert spelled(gemma4(), GEMMA, "a", add_special_tokens=True) == ["<bos>", "a"]


@pytest.mark.parametrize(
    ("tokenizer", "markers"),
    [(unigram(), CONTROL), (bert(), BERT[2:4]), (gemma4(), GEMMA[:3])],
)
def test_nobody_forges_a_marker(tokenizer: Tokenizer, markers: list[str]) -> None:
    # What a text cannot say is BERT's unknown token, which is no marker.
    known = set(tokenizer.added_tokens.values()) - {tokenizer.added_tokens.get("[UNK]")}
    for marker in markers:
        for text in (
            marker,
            f"a {marker} a",
            marker * 2,
            marker.upper(),
            f"{marker[0]} {marker[1:]}",
        ):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            assert not known & set(ids), text
        typed = tokenizer.encode_typed([(marker, True), (marker, False)])
        assert [i for i in typed if i in known] == [tokenizer.added_tokens[marker]]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"scores": [1.0]}, "scores"),
        ({"precompiled_charsmap": [1, 0, 0, 0]}, "precompiled_charsmap"),
        ({"precompiled_charsmap": [300]}, "precompiled_charsmap"),
    ],
)
def test_a_fault_names_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=key):
        unigram(**changes)


def double_array(strings: dict[str, str]) -> bytes:
    """A normalisation table, as SentencePiece writes it."""
    replacements, at = b"", {}
    for key, value in strings.items():
        at[key.encode()] = len(replacements)
        replacements += value.encode() + b"\0"
    prefixes = {key[:size] for key in at for size in range(len(key) + 1)}
    units = [0] * 70_000
    used = {0}
    waiting = deque([(b"", 0)])
    next_base = 256
    while waiting:
        prefix, node = waiting.popleft()
        children = sorted(p[-1] for p in prefixes if p[:-1] == prefix and p)
        base = next_base
        next_base += 256
        units[node] |= (node ^ base if node else base) << 10
        if prefix in at:
            units[node] |= 1 << 8
            units[base] = (1 << 31) | at[prefix]
            used.add(base)
        for byte in children:
            units[base ^ byte] = byte
            waiting.append((prefix + bytes((byte,)), base ^ byte))
    units = units[:next_base]
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + replacements


def test_the_longest_string_of_the_table_is_replaced() -> None:
    table = CharsMap(
        double_array({"ﬁ": "fi", "A": "a", "e\u0301": "é", "\t": " ", "e\u0301\u0302": "ế"})
    )
    for _ in range(2):
        assert table.normalized("Aﬁe\u0301x\te\u0301\u0302ez日") == "afiéx ếez日"
    assert table.normalized("") == ""
    assert table.normalized("e") == "e"


def test_a_table_is_used_before_text_is_cut() -> None:
    raw = list(double_array({"ﬁ": "fi", "e\u0301": "é"}))
    signed = [byte - 256 if byte > 127 else byte for byte in raw]
    assert spelled(unigram(precompiled_charsmap=signed), UNIGRAM, "ﬁxe\u0301") == ["▁fi", "x", "é"]


@pytest.mark.parametrize(
    "raw", [b"", b"\0\0\0\0\0", b"\x04\0\0\0abcd", b"\x04\0\0\0abcdx", b"\3\0\0\0abcde\0"]
)
def test_a_broken_table_is_refused(raw: bytes) -> None:
    with pytest.raises(CharsMapFault):
        CharsMap(raw)


def test_a_table_that_points_beyond_itself_is_refused() -> None:
    beyond = struct.pack("<II", 4, (1 << 20) << 10) + b"\0"
    with pytest.raises(CharsMapFault, match="beyond"):
        CharsMap(beyond).normalized("a")


def test_a_table_that_points_beyond_itself_refuses_the_text() -> None:
    beyond = unigram(precompiled_charsmap=list(struct.pack("<II", 4, (1 << 20) << 10) + b"\0"))
    with pytest.raises(Refusal, match="normalisation table points beyond its end"):
        beyond.encode("a", add_special_tokens=False, parse_special=False)


def test_a_table_that_would_take_long_or_make_long_texts_is_refused() -> None:
    circle = [0] * 512
    circle[0] = 256 << 10
    circle[256 ^ 97] = 97 | 97 << 10  # "a" leads to where it came from
    raw = struct.pack("<513I", 2048, *circle) + b"\0"
    with pytest.raises(CharsMapFault, match="more than 256 bytes"):
        CharsMap(raw)
    with pytest.raises(CharsMapFault, match="circle"):
        CharsMap(struct.pack("<257I", 1024, *(i | i << 10 for i in range(256))) + b"\0")
    with pytest.raises(CharsMapFault, match="replacement of more than 128 bytes"):
        CharsMap(double_array({"a": "b" * 129}))
    with pytest.raises(ModelFileError, match=r"precompiled_charsmap.*256 bytes"):
        unigram(precompiled_charsmap=list(raw))


def test_a_piece_that_would_take_long_to_find_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"tokens\[1\].*longer than 512 characters"):
        tokenizer_of("t5", ["?", "a" * 513], [2, 1], scores=[0.0, 0.0], unknown_token_id=0)


class _Counted(str):
    """Counts how often its characters are looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        type(self).looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("unit", ["e\u0301", "ee", "\u0301", "A"])
def test_normalising_grows_with_the_text(unit: str) -> None:
    def work(size: int) -> int:
        table = CharsMap(double_array({"A": "a", "e\u0301": "é", "eeee": "x"}))
        _Counted.looks = 0
        table.normalized(_Counted((unit * size)[:size]))
        return _Counted.looks

    assert work(8_000) < 4.5 * work(2_000) + 100
