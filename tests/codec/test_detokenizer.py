"""The incremental detokenizer against whole decoding, for any cut into tokens and any stop."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from insitu.codec.detokenizer import Detokenizer, Released

CONTROL_ID = 1000


class Spelling:
    """Token i spells the i-th bytes; one id is a control token."""

    def __init__(self, tokens: list[bytes], *, has_dummy_space: bool = False) -> None:
        self.tokens = tokens
        self.has_dummy_space = has_dummy_space

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes given."""
        return b"<|end|>" if token_id == CONTROL_ID else self.tokens[token_id]

    def is_control(self, token_id: int) -> bool:
        """Only the one."""
        return token_id == CONTROL_ID


def feed(
    tokens: list[bytes], stop: list[str], *, ends: bool = False
) -> tuple[list[Released], Detokenizer]:
    """Push all tokens one by one, then finish."""
    detokenizer = Detokenizer(Spelling(tokens), stop)
    released = []
    for token_id in [*range(len(tokens)), *([CONTROL_ID] if ends else [])]:
        released += detokenizer.push(token_id)
        if detokenizer.stopped:
            break
    released += detokenizer.finish()
    return released, detokenizer


def text_of(released: list[Released]) -> str:
    """The text of all."""
    return "".join(one.text for one in released)


def test_a_character_in_four_tokens_comes_with_the_last() -> None:
    tokens = [bytes((byte,)) for byte in "\U0001f680".encode()] + [b"ok"]
    detokenizer = Detokenizer(Spelling(tokens))
    assert [detokenizer.push(i) for i in range(3)] == [[], [], []]
    fourth = detokenizer.push(3)
    assert [one.token_id for one in fourth] == [0, 1, 2, 3]
    assert [one.text for one in fourth] == ["", "", "", "\U0001f680"]
    assert text_of(detokenizer.push(4)) == "ok"


def test_a_real_leading_space_is_kept() -> None:
    assert text_of(feed([b" lead", b" x"], [])[0]) == " lead x"


def test_an_unfinished_character_is_one_replacement() -> None:
    released, _ = feed([b"a", b"\xf0", b"\x9f\x98"], [])
    assert text_of(released) == "a\ufffd"
    assert [one.index for one in released] == [0, 1, 2]


def test_held_text_is_sent_at_the_end_but_a_complete_stop_is_not() -> None:
    stop = ["beta gamma"]
    assert text_of(feed([b"alpha ", b"beta"], stop)[0]) == "alpha beta"
    assert text_of(feed([b"alpha ", b"beta"], stop, ends=True)[0]) == "alpha beta"
    released, detokenizer = feed([b"alpha ", b"beta", b" gam", b"ma delta", b"!"], stop)
    assert text_of(released) == "alpha "
    assert [one.index for one in released] == [0]
    assert detokenizer.stopped is not None
    assert detokenizer.stopped.token_index == 3
    assert detokenizer.stopped.stop == "beta gamma"


def test_nothing_a_stop_may_cut_is_released_early() -> None:
    detokenizer = Detokenizer(Spelling([b"ab", b"c", b"x"]), ["bcd"])
    assert detokenizer.push(0) == []
    assert detokenizer.push(1) == []
    assert text_of(detokenizer.push(2)) == "abcx"


def test_a_token_across_the_cut_keeps_its_first_part() -> None:
    released, _ = feed([b"one STOP two"], ["STOP"])
    assert [one.text for one in released] == ["one "]


def test_the_earliest_stop_wins_and_of_equal_starts_the_longest() -> None:
    one_token, detokenizer = feed([b"xabcd"], ["bc", "abcd", "abc"])
    assert text_of(one_token) == "x"
    assert detokenizer.stopped is not None
    assert detokenizer.stopped.stop == "abcd"
    for tokens in ([b"xab", b"c", b"d", b"e"], [b"x", b"a", b"b", b"c", b"d"]):
        assert text_of(feed(tokens, ["bc", "abcd"])[0]) == "x"
    # "abcd" fails late: then "bc", completed before, has stopped the text.
    released, detokenizer = feed([b"xab", b"c", b"e", b"f"], ["bc", "abcd"])
    assert text_of(released) == "xa"
    assert detokenizer.stopped is not None
    assert detokenizer.stopped.token_index == 1


def test_control_tokens_show_nothing_unless_asked() -> None:
    assert text_of(feed([b"a"], [], ends=True)[0]) == "a"
    shown = Detokenizer(Spelling([]), show_control=True)
    assert text_of(shown.push(CONTROL_ID)) == "<|end|>"


def cut_at(text: str, stop: list[str]) -> str:
    """The definition: the text up to the earliest stop string."""
    starts = [start for one in stop if (start := text.find(one)) >= 0]
    return text[: min(starts)] if starts else text


RAW = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.text(alphabet="ab", max_size=4).map(str.encode),
        st.sampled_from([b"\xf0", b"\x9f", b"\x98\x80", "é".encode()[:1], "é".encode()[1:], b""]),
    ),
    max_size=24,
)
STOPS = st.lists(st.text(alphabet="ab\ufffdé\U0001f600", min_size=1, max_size=5), max_size=4)


@settings(max_examples=400)
@given(RAW, STOPS)
def test_joined_pieces_are_the_whole_text_up_to_the_stop(
    tokens: list[bytes], stop: list[str]
) -> None:
    released, detokenizer = feed(tokens, stop)
    num_fed = len(tokens)
    whole = b"".join(tokens).decode(errors="replace")
    assert text_of(released) == cut_at(whole, stop)
    assert [one.index for one in released] == list(range(len(released)))
    assert (detokenizer.stopped is not None) == (cut_at(whole, stop) != whole)
    if not detokenizer.stopped:
        assert len(released) == num_fed


@settings(max_examples=200)
@given(st.text(alphabet="abé", max_size=30), STOPS, st.data())
def test_the_text_does_not_depend_on_the_tokens(
    text: str, stop: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=10)))
    bounds = [0, *cuts, len(raw)]
    tokens = [raw[a:b] for a, b in pairwise(bounds)]
    one_byte = [bytes((byte,)) for byte in raw]
    first, second = feed(tokens, stop), feed(one_byte, stop)
    assert text_of(first[0]) == text_of(second[0])
    if first[1].stopped and second[1].stopped:
        assert first[1].stopped.cut == second[1].stopped.cut


@settings(max_examples=200)
@given(RAW, STOPS)
def test_released_text_is_never_taken_back(tokens: list[bytes], stop: list[str]) -> None:
    whole = cut_at(b"".join(tokens).decode(errors="replace"), stop)
    detokenizer = Detokenizer(Spelling(tokens), stop)
    text = ""
    for token_id in range(len(tokens)):
        text += text_of(detokenizer.push(token_id))
        assert whole.startswith(text)
