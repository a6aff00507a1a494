"""Models behind an address: resumed where it is safe, begun anew where it is not."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from insitu.catalog.errors import (
    BadSourceError,
    DownloadError,
    NameTakenError,
    UnknownModelError,
    WrongDigestError,
)
from insitu.catalog.pull import pull
from insitu.catalog.url import parse_url

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.conftest import FileServer

DATA = b"GGUF" + os.urandom(3 << 20)
SHA256 = hashlib.sha256(DATA).hexdigest()


def served(file_server: FileServer) -> str:
    file_server.data = DATA
    return f"{file_server.url}/models/tiny.gguf"


def ranges(file_server: FileServer) -> list[str | None]:
    return [headers.get("range") for _, _, headers in file_server.requests]


def test_a_file_is_fetched_and_verified(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    pulled = pull(f"{url}?token=secret#sha256={SHA256}", tmp_path)
    assert pulled.path == tmp_path / "tiny" / "tiny.gguf"
    assert pulled.path.read_bytes() == DATA
    assert pulled.record.source == url
    assert "secret" not in (tmp_path / "tiny" / ".insitu.json").read_text()
    assert not pull(url, tmp_path).is_new
    assert len(file_server.requests) == 1


def test_a_broken_connection_is_resumed(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    file_server.cut_at = [1_000_000]
    assert pull(url, tmp_path).path.read_bytes() == DATA
    assert ranges(file_server) == [None, "bytes=1000000-"]
    assert file_server.requests[1][2]["if-range"] == '"one"'


def test_a_later_pull_resumes_what_an_earlier_one_left(
    file_server: FileServer, tmp_path: Path
) -> None:
    url = served(file_server)
    file_server.cut_at = [1000, 1000, 1000]
    with pytest.raises(DownloadError, match="run the same command again"):
        pull(url, tmp_path)
    assert not (tmp_path / "tiny").exists()
    assert pull(url, tmp_path).path.read_bytes() == DATA
    assert ranges(file_server) == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]


def test_a_file_that_changed_meanwhile_is_begun_anew(
    file_server: FileServer, tmp_path: Path
) -> None:
    url = served(file_server)
    file_server.cut_at = [1000, 1000, 1000]
    with pytest.raises(DownloadError):
        pull(url, tmp_path)
    file_server.data, file_server.etag = DATA[::-1][:4].join([b"GGUF", b"new"]), '"two"'
    assert pull(url, tmp_path).path.read_bytes() == file_server.data


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_strong_validator_it_is_begun_anew(
    file_server: FileServer, tmp_path: Path, etag: str
) -> None:
    url = served(file_server)
    file_server.etag, file_server.cut_at = etag, [1000]
    assert pull(url, tmp_path).path.read_bytes() == DATA
    assert ranges(file_server) == [None, None]


def test_a_server_without_ranges_is_begun_anew(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    file_server.has_ranges, file_server.cut_at = False, [1000]
    assert pull(url, tmp_path).path.read_bytes() == DATA


def test_a_wrong_digest_is_refused_and_leaves_nothing(
    file_server: FileServer, tmp_path: Path
) -> None:
    url = served(file_server)
    with pytest.raises(WrongDigestError, match="Nothing was kept"):
        pull(f"{url}#sha256={'0' * 64}", tmp_path)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"] == []
    assert pull(f"{url}#sha256={SHA256}", tmp_path).is_new


def test_a_digest_may_be_given_beside_the_address(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    with pytest.raises(WrongDigestError, match="pinned is 0000"):
        pull(url, tmp_path, sha256="0" * 64)
    assert not (tmp_path / "tiny").exists()
    assert pull(url, tmp_path, sha256=f"sha256:{SHA256}").is_new
    assert not pull(url, tmp_path, sha256=SHA256.upper()).is_new
    with pytest.raises(NameTakenError):
        pull(url, tmp_path, sha256="0" * 64)


@pytest.mark.parametrize(
    ("text", "sha256", "said"),
    [
        ("https://models.example/a.gguf", "abc", "64 hexadecimal"),
        (f"https://models.example/a.gguf#sha256={SHA256}", "0" * 64, "differ"),
        ("smollm2-135m", SHA256, "nothing else"),
        (__file__, SHA256, "nothing else"),
    ],
)
def test_a_digest_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, sha256: str, said: str
) -> None:
    with pytest.raises(BadSourceError, match=said):
        pull(text, tmp_path, sha256=sha256)


def test_a_page_instead_of_a_model_is_refused(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    file_server.data = b"<html>please sign in</html>"
    with pytest.raises(WrongDigestError, match="is not a GGUF file"):
        pull(url, tmp_path)


def test_an_error_answer_is_named(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    file_server.status = 404
    with pytest.raises(DownloadError, match="answered 404") as caught:
        pull(url, tmp_path)
    assert str(tmp_path / "tiny" / "tiny.gguf") in str(caught.value)


def test_a_redirect_off_https_is_refused(file_server: FileServer, tmp_path: Path) -> None:
    url = served(file_server)
    file_server.redirect = "http://models.example/tiny.gguf"
    with pytest.raises(BadSourceError, match="https"):
        pull(url, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://models.example/a.gguf", "refused"),
        ("ftp://models.example/a.gguf", "refused"),
        ("file:///etc/passwd", "refused"),
        ("https:///a.gguf", "refused"),
        ("https://models.example/", "does not end"),
        ("https://models.example/..%2f..%2fx.gguf", "does not end"),
        ("https://models.example/a.gguf#md5=1", "sha256="),
        ("https://models.example/a.gguf#sha256=12", "64 hexadecimal"),
        ("https://models.example:port/a.gguf", "not an address"),
    ],
)
def test_addresses_that_cannot_be_used_are_named(text: str, said: str) -> None:
    with pytest.raises(BadSourceError, match=said):
        parse_url(text)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", " ", "a" * 101, "a."])
def test_names_cannot_leave_the_models_folder(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(b"GGUF")
    if name:
        with pytest.raises(BadSourceError, match="cannot name a model"):
            pull(str(source), tmp_path / "models", name=name)
    else:
        with pytest.raises(UnknownModelError):
            pull("nothing", tmp_path / "models", name=name)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "notes.txt"
    source.write_bytes(b"hello")
    with pytest.raises(BadSourceError, match=r"not a model file"):
        pull(str(source), tmp_path / "models")


def test_credentials_are_not_written_down() -> None:
    source = parse_url("https://user:password@models.example:8443/a.gguf?key=1")
    assert source.shown == "https://models.example:8443/a.gguf"
