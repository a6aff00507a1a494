"""Every setting of insitu, once: a field is a flag, a key of the settings file, and its own help.

A field marked *numeric* can change bits of the output; no other field can. Not here: what a setting
does. Always true: a ``Settings`` is frozen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from insitu.settings.kinds import (
    BOOLEAN,
    FILE,
    FOLDER,
    HOST,
    HOSTS,
    INTEGER,
    NAMES,
    ORIGINS,
    SECONDS,
    SIZE,
    TEXT,
    Kind,
    one_number_of,
    one_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
    requests_per_minute: int | None = _setting(
        None, INTEGER(1, 10**9), "Requests a minute of a name whose keys say nothing else."
    )
    tokens_per_minute: int | None = _setting(
        None, INTEGER(1, 10**12), "Tokens a minute, prompts and answers, of such a name."
    )
    tokens_per_day: int | None = _setting(
        None, INTEGER(1, 10**15), "Tokens a day (UTC) of such a name."
    )
    concurrent_requests: int | None = _setting(
        None, INTEGER(1, 10**6), "Requests at a time of such a name."
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
    model_alias: tuple[str, ...] = _setting(
        (), NAMES, "A further name that clients may use for the model (repeatable)."
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
        one_of("f16", "bf16", "f32", "int8"),
        "How keys and values are stored.",
        numeric=True,
    )
    block_size: int = _setting(32, one_number_of(16, 32), "Tokens of one KV block.")
    sampling_defaults: str = _setting(
        "model",
        one_of("model", "none"),
        "Whose temperature, top_k, top_p and min_p a request gets that gives none.",
        numeric=True,
    )
    prefix_caching: str = _setting(
        "on",
        one_of("on", "off"),
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
    tool_parser: str = _setting(
        "auto",
        one_of(
            "auto", "none", "deepseek", "gemma", "granite", "hermes", "llama3", "mistral",
            "pythonic",
        ),
        "How tool calls are written; auto: as the chat template writes them.",
    )  # fmt: skip
    reasoning_parser: str = _setting(
        "auto",
        one_of(
            "auto", "none", "think", "thinking", "brackets", "seed", "thought", "reasoning",
            "channels",
        ),
        "Which signs stand around reasoning; auto: those of the chat template.",
    )  # fmt: skip
    unopened_reasoning: str = _setting(
        "content",
        one_of("content", "reasoning"),
        "What stands before a closing sign that nothing opened; for reasoning, answers are held "
        "back until none can come.",
    )
    default_reasoning_tokens: int | None = _setting(
        None,
        INTEGER(0, 2**31 - 1),
        "Most tokens of reasoning for a request that does not say [default: no limit].",
    )
    max_reasoning_tokens: int | None = _setting(
        None,
        INTEGER(0, 2**31 - 1),
        "Most tokens of reasoning that any request gets [default: no limit].",
    )
    models_dir: Path | None = _setting(
        None, FOLDER, "Folder that pulled models live in [default: the user's cache folder]."
    )
    catalog: Path | None = _setting(None, FILE, "A catalogue of models beside the shipped one.")
    batch_dir: Path | None = _setting(
        None,
        FOLDER,
        "Folder for uploaded files and batches, prompts in them; without it both are off.",
    )
    max_body_bytes: int = _setting(8 * 2**20, SIZE, "Largest request body.")
    drain_grace_s: float = _setting(
        30.0, SECONDS, "How long running requests may finish after SIGTERM."
    )


FIELDS: Mapping[str, dataclasses.Field[Any]] = {f.name: f for f in dataclasses.fields(Settings)}
# What each command takes: names of fields. A field absent from all of them would be no flag at all.
STORE_FIELDS = ("models_dir", "catalog")
ANSWER_FIELDS = (
    "tool_parser",
    "reasoning_parser",
    "unopened_reasoning",
    "default_reasoning_tokens",
    "max_reasoning_tokens",
)
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
