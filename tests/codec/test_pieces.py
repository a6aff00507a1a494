from __future__ import annotations

import pytest

from insitu.codec.pieces import Pieces

SPELLINGS = ["", "a", "Ġthe", "▁", "", "😀", "\ud83d", "\ude00", "\x00", "end"]


def test_pieces_are_the_list_they_were_made_of() -> None:
    pieces = Pieces(SPELLINGS)
    assert list(pieces) == SPELLINGS
    assert len(pieces) == len(SPELLINGS)
    assert [pieces[-1 - i] for i in range(len(SPELLINGS))] == SPELLINGS[::-1]
    assert pieces[2:7:2] == SPELLINGS[2:7:2]
    assert list(Pieces([])) == []


def test_no_piece_lies_beyond_the_last() -> None:
    for index in (len(SPELLINGS), -len(SPELLINGS) - 1):
        with pytest.raises(IndexError):
            Pieces(SPELLINGS)[index]
