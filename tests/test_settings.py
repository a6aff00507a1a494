"""Settings: one field, one flag, one key; flag over file over default; faults refused by name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from insitu.cli.flags import settings_flags
from insitu.cli.table import VERBS, insitu
from insitu.settings.fields import FIELDS, Settings
from insitu.settings.load import (
    CONFIG_VARIABLE,
    SettingError,
    flag_of,
    load_settings,
    numeric_fields,
    read_value,
)

if TYPE_CHECKING:
    from pathlib import Path


def file_with(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "insitu.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    path = file_with(tmp_path, 'port = 9000\nhost = "::1"\n')
    settings = load_settings({"port": "9001", "threads": None}, path, {})
    assert (settings.port, settings.host) == (9001, "::1")
    assert settings.max_num_seqs == Settings().max_num_seqs
    assert settings.threads is None


def test_the_variable_names_the_file_and_config_wins_over_it(tmp_path: Path) -> None:
    path = file_with(tmp_path, "port = 9000\n")
    assert load_settings({}, None, {CONFIG_VARIABLE: str(path)}).port == 9000
    other = tmp_path / "other.toml"
    other.write_text("port = 9002\n")
    assert load_settings({}, other, {CONFIG_VARIABLE: str(path)}).port == 9002
    assert load_settings({}, None, {CONFIG_VARIABLE: ""}).port == 8000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot = 9000\n", "unknown key 'prot'"),
        ("[server]\nport = 1\n", "unknown key 'server'"),
        (f"port = {'9' * 5000}\n", "digits"),
        (f"port = {'[' * 5000}{']' * 5000}\n", "nested too deep"),
        ("#" * (1 << 20) + "\n", "over 1048576 bytes"),
        ('models_dir = "~nobody-of-that-name/x"\n', "models_dir: a path whose ~"),
        ('cors_origin = ["example.org"]\n', "cors_origin: an origin as a browser sends it"),
        ('cors_origin = ["https://example.org/page"]\n', "cors_origin: an origin"),
        ('allowed_host = ["http://example.org"]\n', "allowed_host: an address or host name"),
        (f'kv_cache_bytes = "{"9" * 5000}"\n', "kv_cache_bytes: a size in bytes"),
        (f'kv_cache_bytes = "{"9" * 400}.5TiB"\n', "kv_cache_bytes: a size in bytes"),
        ('port = "many"\n', "port: a whole number"),
        ("port = 70000\n", "port: a whole number from 0 to 65535"),
        ("port = true\n", "port: a whole number"),
        ("threads = 0\n", "threads: a whole number from 1"),
        ("threads = 1.5\n", "threads: a whole number"),
        ('kv_cache_bytes = "2 bananas"\n', "kv_cache_bytes: a size"),
        ("kv_cache_bytes = -1\n", "kv_cache_bytes: a size"),
        ("kv_cache_bytes = 1.5\n", "kv_cache_bytes: a size"),
        ('insecure = "yes"\n', "insecure: true or false"),
        ('cors_origin = "https://a.example"\n', "cors_origin: a list"),
        ("cors_origin = [1]\n", "cors_origin: a text"),
        ('host = ""\n', "host: a text"),
        ('host = "http://x/"\n', "host: an address"),
        ("host = 1\n", "host: a text"),
        ('kv_cache_dtype = "f8"\n', "kv_cache_dtype: one of f16, bf16, f32, int8"),
        ("block_size = 24\n", "block_size: 16 or 32 is wanted, not 24"),
        ('block_size = "x"\n', "block_size: 16 or 32"),
        ("drain_grace_s = -1\n", "drain_grace_s: seconds"),
        ("drain_grace_s = nan\n", "drain_grace_s: seconds"),
        ("not toml\n", "settings file"),
    ],
)
def test_faults_of_the_file_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        load_settings({}, file_with(tmp_path, text), {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="No such file"):
        load_settings({}, tmp_path / "absent.toml", {})


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1", 1),
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("1.5GiB", 3 << 29),
        ("512m", 512 << 20),
        ("3GB", 3_000_000_000),
        (4096, 4096),
    ],
)
def test_sizes_are_read_with_their_units(text: str | int, size_bytes: int) -> None:
    assert read_value("kv_cache_bytes", text, "here") == size_bytes


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.lists(st.text())))
def test_any_value_is_read_or_refused_by_name(raw: Any) -> None:
    for name in FIELDS:
        said = f"{name}: "
        try:
            read_value(name, raw, name)
        except SettingError as error:
            said = str(error)
        assert said.startswith(f"{name}: ")


def test_an_unknown_flag_value_is_refused() -> None:
    with pytest.raises(SettingError, match="unknown setting 'prot'"):
        load_settings({"prot": 1}, None, {})


def test_settings_are_frozen_and_their_defaults_pass_their_own_checks() -> None:
    settings = Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]
    for name in FIELDS:
        value = getattr(settings, name)
        if value is not None:
            assert read_value(name, value, name) == value


def test_every_field_is_a_flag_of_serve_and_says_what_it_does() -> None:
    serve = insitu.get_command(click.Context(insitu), "serve")
    assert serve is not None
    flags = {flag for param in serve.params for flag in param.opts}
    for name, field in FIELDS.items():
        assert flag_of(name) in flags
        assert field.metadata["help"].endswith((".", "]."))


def test_every_verb_has_a_command_of_its_name() -> None:
    for verb in VERBS:
        command = insitu.get_command(click.Context(insitu), verb)
        assert command is not None
        assert command.name == verb
        assert command.help


def test_numeric_settings_are_marked() -> None:
    assert numeric_fields() == ("kv_cache_dtype", "sampling_defaults")


def test_flags_hand_over_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    seen: list[Settings] = []

    @click.command()
    @settings_flags(("port", "cors_origin", "insecure"))
    def verb(settings: Settings) -> None:
        seen.append(settings)

    path = file_with(tmp_path, "port = 9000\ninsecure = true\n")
    verb.main(["--cors-origin", "http://a", "--cors-origin", "http://b"], standalone_mode=False)
    verb.main(["--config", str(path)], standalone_mode=False)
    verb.main(["--config", str(path), "--port", "1"], standalone_mode=False)
    assert seen[0].cors_origin == ("http://a", "http://b")
    assert (seen[1].port, seen[1].insecure, seen[2].port) == (9000, True, 1)
