"""Every setting of insitu, once: a field is a flag, a key of the settings file, and its own help.

A value comes from the flag, else from the settings file (``--config`` or ``INSITU_CONFIG``), else
from the default here. A field marked *numeric* can change bits of the output; no other field can.

Not here: what a setting does. Rooms receive values, never this object. Always true: a ``Settings``
is frozen and each of its values was checked; unknown keys and wrong types are refused by name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CONFIG_VARIABLE = "INSITU_CONFIG"
_UNITS = {
    "": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "b": 1,
}  # fmt: skip
_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,9})?)\s*([a-z]*)", re.IGNORECASE)
_ORIGIN = re.compile(r"https?://[!-.0-~]+")  # visible ASCII without a slash
_HOST_BYTES_MAX = 253
_MAX_FILE_BYTES = 1 << 20


class SettingError(Exception):
    """A setting that cannot be used: its name, the value given, and what is wanted."""


class _Refused(Exception):
    """A value refused by its kind; the text says what is wanted."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How a setting's value is read. ``read`` takes text of a flag or a value of the file."""

    metavar: str
    read: Callable[[Any], Any]
    is_flag: bool = False
    is_repeatable: bool = False


def _integer(minimum: int, maximum: int) -> Kind:
    def read(raw: Any) -> int:
        is_number = isinstance(raw, int) and not isinstance(raw, bool)
        if not is_number and not (
            isinstance(raw, str) and re.fullmatch(r"-?\d{1,18}", raw.strip())
        ):
            raise _Refused("a whole number")
        if not minimum <= int(raw) <= maximum:
            raise _Refused(f"a whole number from {minimum} to {maximum}")
        return int(raw)

    return Kind("N", read)


def _seconds(raw: Any) -> float:
    try:
        value = float(raw) if not isinstance(raw, bool) else -1.0
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value <= 86_400:
        raise _Refused("seconds, from 0 to 86400")
    return value


def _size(raw: Any) -> int:
    wanted = "a size in bytes such as 536870912, 512MiB or 2GiB"
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise _Refused(wanted)
    match = _SIZE.fullmatch(str(raw).strip())
    unit = match[2].lower() if match else ""
    if match is None or unit not in _UNITS:
        raise _Refused(wanted)
    value = float(match[1]) if "." in match[1] else int(match[1])
    size = int(value * _UNITS[unit])
    if not 0 < size < 2**62:
        raise _Refused(wanted)
    return size


def _boolean(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise _Refused("true or false")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or not raw.strip() or any(ord(c) < 32 for c in raw):
        raise _Refused("a text that is not empty")
    return raw


def _host(raw: Any) -> str:
    text = _text(raw)
    if len(text) > _HOST_BYTES_MAX or any(c in text for c in " /@"):
        raise _Refused("an address or host name")
    return text


def _path(raw: Any) -> Path:
    if isinstance(raw, Path):
        return raw
    try:
        return Path(_text(raw)).expanduser()
    except RuntimeError:
        raise _Refused("a path whose ~ is the home of somebody here") from None


def _origin(raw: Any) -> str:
    text = _text(raw)
    if not _ORIGIN.fullmatch(text.removesuffix("/")):
        raise _Refused("an origin as a browser sends it, such as https://example.org,")
    return text


def _many(read: Callable[[Any], str]) -> Callable[[Any], tuple[str, ...]]:
    def read_all(raw: Any) -> tuple[str, ...]:
        if not isinstance(raw, (list, tuple)):
            raise _Refused("a list of texts")
        return tuple(read(item) for item in raw)

    return read_all


def _one_of(*choices: str) -> Kind:
    def read(raw: Any) -> str:
        if raw not in choices:
            raise _Refused(f"one of {', '.join(choices)}")
        return str(raw)

    return Kind("|".join(choices), read)


def _one_number_of(*choices: int) -> Kind:
    number = _integer(min(choices), max(choices))
    wanted = " or ".join(map(str, choices))

    def read(raw: Any) -> int:
        try:
            value: int = number.read(raw)
        except _Refused:
            raise _Refused(wanted) from None
        if value not in choices:
            raise _Refused(wanted)
        return value

    return Kind("|".join(map(str, choices)), read)


INTEGER = _integer
SECONDS = Kind("SECONDS", _seconds)
SIZE = Kind("BYTES", _size)
BOOLEAN = Kind("", _boolean, is_flag=True)
TEXT = Kind("TEXT", _text)
HOST = Kind("HOST", _host)
FILE = Kind("FILE", _path)
FOLDER = Kind("DIR", _path)
HOSTS = Kind("HOST", _many(_host), is_repeatable=True)
ORIGINS = Kind("ORIGIN", _many(_origin), is_repeatable=True)


def _setting(default: Any, kind: Kind, help_text: str, *, numeric: bool = False) -> Any:
    return field(default=default, metadata={"kind": kind, "help": help_text, "numeric": numeric})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a person can set. None means that insitu decides, and says what it decided."""

    host: str = _setting("127.0.0.1", HOST, "Address to listen on.")
    port: int = _setting(8000, INTEGER(0, 65_535), "Port to listen on; 0 takes a free one.")
    api_key_file: Path | None = _setting(
        None, FILE, "File of API keys, one `key` or `name:key` a line; without it nobody is asked."
    )
    insecure: bool = _setting(
        False, BOOLEAN, "Let a server without keys listen beyond this machine."
    )
    allowed_host: tuple[str, ...] = _setting(
        (), HOSTS, "A further Host header to answer to (repeatable)."
    )
    cors_origin: tuple[str, ...] = _setting(
        (), ORIGINS, "A web origin whose pages may call this server (repeatable)."
    )
    served_model_name: str | None = _setting(
        None, TEXT, "Name that clients use for the model [default: its catalogue or file name]."
    )
    threads: int | None = _setting(
        None, INTEGER(1, 1024), "Worker threads [default: one for each usable core]."
    )
    pin: bool = _setting(
        False, BOOLEAN, "Keep each worker thread on one core; slower where cores are shared."
    )
    kv_cache_bytes: int | None = _setting(
        None, SIZE, "Memory for the KV cache, such as 2GiB [default: from what is left]."
    )
    kv_cache_dtype: Literal["f16", "bf16", "f32", "int8"] = _setting(
        "f16",
        _one_of("f16", "bf16", "f32", "int8"),
        "How keys and values are stored.",
        numeric=True,
    )
    block_size: int = _setting(32, _one_number_of(16, 32), "Tokens of one KV block.")
    sampling_defaults: str = _setting(
        "model",
        _one_of("model", "none"),
        "Whose temperature, top_k, top_p and min_p a request gets that gives none.",
        numeric=True,
    )
    prefix_caching: str = _setting(
        "on",
        _one_of("on", "off"),
        "Keep keys and values of finished requests, for the same tenant's that begin alike.",
    )
    max_model_len: int | None = _setting(
        None,
        INTEGER(1, 2**31 - 1),
        "Longest prompt and answer together, in tokens [default: the file's].",
    )
    max_num_seqs: int = _setting(16, INTEGER(1, 1024), "Most sequences that run at once.")
    max_num_batched_tokens: int | None = _setting(
        None,
        INTEGER(1, 65_536),
        "Most tokens of one step [default: 64 while others decode, 512 alone].",
    )
    max_num_waiting: int = _setting(
        256, INTEGER(0, 1_000_000), "Most sequences that wait; a request beyond is a 429."
    )
    request_timeout_s: float = _setting(
        0.0, SECONDS, "Longest that a request may take, in the queue included; 0: no limit."
    )
    step_timeout_s: float = _setting(
        300.0, SECONDS, "A step that takes longer ends its requests with an error; 0: no limit."
    )
    models_dir: Path | None = _setting(
        None, FOLDER, "Folder that pulled models live in [default: the user's cache folder]."
    )
    catalog: Path | None = _setting(None, FILE, "A catalogue of models beside the shipped one.")
    max_body_bytes: int = _setting(8 * 2**20, SIZE, "Largest request body.")
    drain_grace_s: float = _setting(
        30.0, SECONDS, "How long running requests may finish after SIGTERM."
    )


FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}
# What each command takes: names of fields. A field absent from all of them would be no flag at all.
STORE_FIELDS = ("models_dir", "catalog")
ENGINE_FIELDS = (
    "threads",
    "pin",
    "kv_cache_bytes",
    "kv_cache_dtype",
    "block_size",
    "sampling_defaults",
    "prefix_caching",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)


def flag_of(name: str) -> str:
    """The flag of a field: ``max_num_seqs`` is ``--max-num-seqs``."""
    return "--" + name.replace("_", "-")


def numeric_fields() -> tuple[str, ...]:
    """The settings that can change a bit of the output."""
    return tuple(name for name, f in FIELDS.items() if f.metadata["numeric"])


def read_value(name: str, raw: Any, where: str) -> Any:
    """One value through its field's kind; the error names the field and where the value stood."""
    kind: Kind = FIELDS[name].metadata["kind"]
    try:
        return kind.read(raw)
    except _Refused as refused:
        raise SettingError(f"{where}: {refused} is wanted, not {raw!r}.") from None


def read_file(path: Path) -> dict[str, Any]:
    """The settings file's checked values."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise SettingError(f"settings file {path}: over {_MAX_FILE_BYTES} bytes.")
        values = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise SettingError(f"settings file {path}: {error.strerror}.") from error
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise SettingError(f"settings file {path}: {error}.") from error
    except RecursionError as error:
        raise SettingError(f"settings file {path}: nested too deep.") from error
    if unknown := sorted(set(values) - set(FIELDS)):
        raise SettingError(
            f"settings file {path}: unknown key {unknown[0]!r} (known: {', '.join(FIELDS)})."
        )
    return {name: read_value(name, raw, f"{path}: {name}") for name, raw in values.items()}


def load_settings(
    flags: Mapping[str, Any],
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from flags given (absent or None: not given), then the file, then the defaults."""
    variables = os.environ if environment is None else environment
    chosen = config or (
        Path(variables[CONFIG_VARIABLE]) if variables.get(CONFIG_VARIABLE) else None
    )
    values = read_file(chosen) if chosen is not None else {}
    for name, raw in flags.items():
        if name not in FIELDS:
            raise SettingError(f"unknown setting {name!r} (known: {', '.join(FIELDS)}).")
        if raw is not None and raw != ():
            values[name] = read_value(name, raw, flag_of(name))
    return Settings(**values)
