"""API keys: what a file may hold, and who a presented key is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from insitu.policy.keys import KeyFileError, KeyRing
from insitu.types import Caller

if TYPE_CHECKING:
    from pathlib import Path


def ring(tmp_path: Path, text: str) -> KeyRing:
    path = tmp_path / "keys"
    path.write_text(text, "utf-8")
    return KeyRing.read(path)


def test_plain_and_named_keys_are_recognised(tmp_path: Path) -> None:
    keys = ring(tmp_path, "# ours\n\nplain-key-1\n  alice:alice-key:with-colon \nplain-key-2\n")
    assert len(keys) == 3
    assert keys.authenticate("plain-key-1") == Caller("key-1")
    assert keys.authenticate("plain-key-2") == Caller("key-2")
    assert keys.authenticate("alice-key:with-colon") == Caller("alice")


@pytest.mark.parametrize(
    "presented",
    [None, "", "plain-key", "alice", "alice:alice-key-1", "\ud800", "é"],
)
def test_strangers_are_nobody(tmp_path: Path, presented: str | None) -> None:
    assert ring(tmp_path, "plain-key-1\nalice:alice-key-1").authenticate(presented) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no key"),
        ("# only a comment\n", "holds no key"),
        ("short", "line 1: a key has 8 to 512"),
        ("long-enough\nal ice:long-enough-2", "line 2: the name"),
        (":long-enough", "line 1: the name"),
        ("alice:", "line 1: a key has"),
        ("alice:has a space", "visible ASCII"),
        ("schlüssel-lang", "visible ASCII"),
        ("same-key-1\nbob:same-key-1", "line 2: the same key"),
    ],
)
def test_faults_are_named_with_their_line_and_never_show_the_key(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(KeyFileError, match=said) as caught:
        ring(tmp_path, text)
    assert "same-key-1" not in str(caught.value)
    assert "schlüssel" not in str(caught.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="No such file"):
        KeyRing.read(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(KeyFileError, match="not UTF-8"):
        KeyRing.read(tmp_path / "binary")


def test_no_key_is_kept_as_written(tmp_path: Path) -> None:
    keys = ring(tmp_path, "alice:very-secret-key")
    assert "very-secret-key" not in repr(vars(keys))
