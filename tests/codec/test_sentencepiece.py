"""SentencePiece vocabularies of GGUF files: merging, bytes, the dummy space, forged markers."""

from __future__ import annotations

from typing import Any

import pytest
from codec import tiny_sentencepiece as tiny
from codec.tiny_sentencepiece import ID
from codec.tiny_vocabulary import FakeSource
from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.codec.detokenizer import Detokenizer
from insitu.codec.piece_merger import PieceMerger
from insitu.codec.tokenizer import Tokenizer, load_tokenizer
from insitu.refusal import Refusal
from insitu.weights.errors import ModelFileError

TOKENIZER = tiny.tiny_tokenizer()
BARE = tiny.tiny_tokenizer(add_space_prefix=False)
TEXTS = [
    "Größe 7", "a\r\nb", "\t\n \r", "e\u0301", "\u00e9", "\U0001f469\u200d\U0001f4bb", "日本", "\0",
    " lead", " trail ", "\ufeffx", "hello world", "alpha\0omega", "▁", "a  b",
    "<b>hello</b>\n\n\n", "",
]  # fmt: skip


def encode(text: str, tokenizer: Tokenizer = TOKENIZER, **asked: bool) -> list[int]:
    """Ids without a beginning."""
    options = {"add_special_tokens": False, "parse_special": False, **asked}
    return tokenizer.encode(text, **options)


def spelled(ids: list[int]) -> list[str]:
    """The pieces of ids."""
    return [tiny.pieces()[token_id] for token_id in ids]


def streamed(tokenizer: Tokenizer, ids: list[int], *, begins_text: bool = True) -> str:
    """Text of ids that come one by one."""
    detokenizer = Detokenizer(tokenizer, begins_text=begins_text)
    released = [one for token_id in ids for one in detokenizer.push(token_id)]
    return "".join(one.text for one in [*released, *detokenizer.finish()])


def test_the_best_score_merges_first_and_a_space_goes_before_a_text() -> None:
    assert spelled(encode("hello world")) == ["▁", "hello", "▁world"]
    assert spelled(encode("hello world", BARE)) == ["hello", "▁world"]
    assert spelled(encode("the", BARE)) == ["t", "he"]


def test_what_has_no_piece_is_spelt_in_bytes() -> None:
    assert spelled(encode("zö日", BARE)) == ["<0x7A>", "<0xC3>", "<0xB6>", "日"]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, BARE])
@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_is_exact_but_for_the_word_mark(tokenizer: Tokenizer, text: str) -> None:
    wanted = text.replace("▁", " ")
    ids = encode(text, tokenizer)
    assert tokenizer.detokenize(ids) == wanted
    assert streamed(tokenizer, ids) == wanted


ALPHABET = st.text(alphabet="▁ abhelowrdt\n<s>ø日", max_size=40)


@given(ALPHABET, st.sampled_from([1.0, 3.0, 100.0]))
@settings(max_examples=200)
def test_merging_is_what_its_definition_says(text: str, same: float) -> None:
    # Divided and rounded, several pieces have one score: the leftmost then goes first.
    mergeable = [*tiny.LETTERS, *tiny.MERGED]
    scores = {piece: float(tiny.score(piece) // same) for piece in mergeable}
    by_id = [scores.get(piece, 0.0) for piece in tiny.pieces()]
    byte_ids = {byte: ID[f"<0x{byte:02X}>"] for byte in range(256)}
    merger = PieceMerger({piece: ID[piece] for piece in mergeable}, by_id, byte_ids)
    marked = text.replace(" ", "▁")
    wanted = []
    for symbol in tiny.merged_as_defined(marked, scores):
        known = [ID[symbol]] if symbol in scores else [byte_ids[b] for b in symbol.encode()]
        wanted += known
    assert merger.encode(marked) == wanted


def test_a_piece_over_two_words_keeps_them_together() -> None:
    assert spelled(encode("on a hill", TOKENIZER)) == ["▁on▁a", "▁hill"]


@pytest.mark.parametrize(
    ("tokens", "whole"),
    [
        (["▁", "▁lead", "▁x"], " lead x"),
        (["▁on▁a", "▁hill"], "on a hill"),
        (["▁Good", "▁day"], "Good day"),
        (["<s>", "▁Good", "▁day"], "Good day"),
    ],
)
def test_one_dummy_space_goes_and_only_at_the_beginning(tokens: list[str], whole: str) -> None:
    ids = [ID[token] for token in tokens]
    assert streamed(TOKENIZER, ids) == whole
    assert TOKENIZER.detokenize(ids, show_control=False) == whole


def test_the_rest_of_a_prompts_text_keeps_its_space() -> None:
    assert streamed(TOKENIZER, [ID["▁day"]], begins_text=False) == " day"
    assert streamed(BARE, [ID["▁day"]]) == " day"


def test_byte_pieces_become_characters() -> None:
    ids = [ID[f"<0x{byte:02X}>"] for byte in "🚀ö".encode()]
    assert streamed(BARE, ids) == "🚀ö"
    assert BARE.detokenize(ids[:2]) == "\ufffd"


def test_a_beginning_is_added_unless_the_file_says_no() -> None:
    assert encode("a", add_special_tokens=True)[0] == ID["<s>"]
    assert encode("a", tiny.tiny_tokenizer(add_bos_token=False), add_special_tokens=True) == encode(
        "a"
    )
    ended = tiny.tiny_tokenizer(add_eos_token=True)
    assert encode("a", ended, add_special_tokens=True)[-1] == ID["</s>"]


def test_tokens_of_ordinary_text_are_matched_in_anybodys_text() -> None:
    assert spelled(encode("a\n\n\n\n\nø<b>  </b>", BARE)) == [
        "a", "\n\n\n", "\n\n", "ø", "<b>", "  ", "</b>",
    ]  # fmt: skip


@pytest.mark.parametrize("marker", [*tiny.CONTROL, *tiny.MARKERS])
@pytest.mark.parametrize("tokenizer", [TOKENIZER, BARE])
def test_nobody_forges_a_marker(tokenizer: Tokenizer, marker: str) -> None:
    for text in (marker, f"a{marker}\n\n{marker}", f" {marker} ", marker.replace("_", "\u200b_")):
        assert ID[marker] not in encode(text, tokenizer)
        typed = [("<s>", True), (text, False), ("</s>", True)]
        ids = tokenizer.encode_typed(typed)
        assert [i for i in ids if i in tokenizer.added_tokens.values()] == [ID["<s>"], ID["</s>"]]
    assert encode(marker, tokenizer, parse_special=True) == [ID[marker]]
    halves = [(marker[:2], True), (marker[2:], False), (marker[:2], False), (marker[2:], True)]
    assert ID[marker] not in tokenizer.encode_typed(halves)


def test_markers_of_phi3_take_the_line_end_that_follows() -> None:
    values = {**tiny.metadata_values(), "general.architecture": "phi3"}
    tokenizer = load_tokenizer(FakeSource(values=values))  # type: ignore[arg-type]
    marked = "<start_of_turn>\nhello<end_of_turn>\n"
    ids = tokenizer.encode(marked, add_special_tokens=False, parse_special=True)
    assert spelled(ids) == ["<start_of_turn>", "▁", "hello", "<end_of_turn>"]
    assert len(encode(marked, parse_special=True)) > len(ids)


def test_end_ids_hold_the_end_of_a_turn() -> None:
    assert TOKENIZER.end_ids == {ID["</s>"], ID["<end_of_turn>"]}
    named = tiny.tiny_tokenizer(eot_token_id=ID["<start_of_turn>"])
    assert named.end_ids == {ID["</s>"], ID["<start_of_turn>"]}


def test_the_table_knows_every_id() -> None:
    table = TOKENIZER.table()
    assert [table.token_bytes[ID[piece]] for piece in ("▁world", "<0xF0>", "<tool_call>")] == [
        b" world", b"\xf0", b"<tool_call>",
    ]  # fmt: skip
    assert table.special_ids == {0, *(ID[token] for token in tiny.CONTROL)}
    assert table.marker_ids == {ID[token] for token in tiny.MARKERS}


def test_without_byte_pieces_what_cannot_be_spelt_is_refused() -> None:
    values = tiny.metadata_values()
    types = [1 if kind == 6 else kind for kind in values["tokenizer.ggml.token_type"]]
    tokenizer = tiny.tiny_tokenizer(token_type=types)
    with pytest.raises(Refusal, match=r"U\+007A"):
        encode("az", tokenizer)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"scores": [0.0]}, "scores"),
        ({"scores": None}, "scores"),
        ({"token_type": [7] * len(ID)}, "token_type"),
        ({"token_type": [6] * len(ID)}, "tokens"),
        ({"bos_token_id": 100_000}, "bos_token_id"),
    ],
)
def test_a_fault_names_its_key(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{key}"):
        tiny.tiny_tokenizer(**changes)


class _Counting(dict[str, int]):
    """Counts how often it is looked into."""

    count = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.count += 1
        return super().get(key, default)


@pytest.mark.parametrize("unit", ["a", "▁", "ab", "日", "aab▁", "z"])
def test_work_grows_no_faster_than_the_text(unit: str) -> None:
    def work(size: int) -> int:
        ids = _Counting({piece: ID[piece] for piece in tiny.LETTERS + tiny.MERGED})
        scores = [tiny.score(piece) for piece in tiny.pieces()]
        merger = PieceMerger(ids, scores, {byte: ID[f"<0x{byte:02X}>"] for byte in range(256)})
        merger.encode((unit * size)[:size])
        return ids.count

    assert work(40_000) < 4.5 * work(10_000) + 100
