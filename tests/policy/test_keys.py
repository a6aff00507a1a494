"""API keys: what a file may hold, and who a presented key is."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from insitu.cli.table import insitu
from insitu.policy.key_file import KeyFile
from insitu.policy.keys import KeyFileError, KeyRing
from insitu.policy.limits import Limits
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
        ("long-enough\nal!ice:long-enough-2", "line 2: the name"),
        (":long-enough", "line 1: the name"),
        ("alice:", "line 1: a key has"),
        ("alice:long-enough a-word", "word 1 after the key is none of admin"),
        ("alice:long-enough requests_per_minute=0", "word 1 after the key"),
        ("alice:long-enough admin tokens_per_hour=5", "word 2 after the key"),
        ("alice:key-one-1 tokens_per_day=5\nalice:key-two-2", "line 2: this name has other limits"),
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


def test_a_file_may_hold_hashes_scopes_and_limits(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"hashed-key-1").hexdigest()
    text = (
        f"bob:sha256:{digest} admin\nsha256:{hashlib.sha256(b'hashed-key-2').hexdigest()}\n"
        "carol:carols-key requests_per_minute=60 tokens_per_day=1000\n"
    )
    keys = ring(tmp_path, text)
    assert keys.authenticate("hashed-key-1") == Caller("bob", is_admin=True)
    assert keys.authenticate("hashed-key-2") == Caller("key-1")
    assert keys.authenticate(digest) is None
    assert keys.authenticate(f"sha256:{digest}") is None
    limits = Limits(requests_per_minute=60, tokens_per_day=1000)
    assert keys.limits_of(Caller("carol")) == limits
    assert keys.limits_of(Caller("bob")) == Limits()
    over = limits.over(Limits(requests_per_minute=5, concurrent_requests=2))
    assert over == Limits(60, None, 1000, 2)


def test_a_changed_file_is_read_again_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    path.write_text("alice:alices-key\n")
    now_s = 0.0
    keys = KeyFile(path, clock=lambda: now_s)
    path.write_text("alice:alices-key\nbob:bobs-long-key\n")
    assert keys.authenticate("bobs-long-key") is None
    now_s = 1.0
    assert keys.authenticate("bobs-long-key") == Caller("bob")
    path.write_text("bob:bobs-long-key\n")
    now_s = 2.0
    assert keys.authenticate("alices-key") is None
    path.write_text("short")
    now_s = 3.0
    assert keys.authenticate("bobs-long-key") == Caller("bob")
    path.unlink()
    now_s = 4.0
    assert keys.authenticate("bobs-long-key") == Caller("bob")
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert len(said) == 2
    assert "line 1" in said[0]
    assert "bobs" not in caplog.text


def test_a_drawn_key_is_known_by_its_line(tmp_path: Path) -> None:
    drawn = CliRunner().invoke(insitu, ["key", "alice", "--admin"])
    key, line = drawn.output.splitlines()
    assert key not in line
    assert ring(tmp_path, line).authenticate(key) == Caller("alice", is_admin=True)
    assert CliRunner().invoke(insitu, ["key", "al ice"]).exit_code == 2
