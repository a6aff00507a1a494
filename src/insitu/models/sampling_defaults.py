"""What a model's publisher says of how to sample: read, and applied only as the plan shows it.

A folder says it in generation_config.json, a GGUF file in ``general.sampling.*``.

Not here: end ids (``codec``), or which value wins (a request's own does).

Always true: a value that is taken is in the range a request's own may have; what asks for something
that is not done is named in a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from insitu.sampling_params import SamplingParams
from insitu.weights.errors import ModelFileError
from insitu.weights.metadata import Metadata
from insitu.weights.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from insitu.weights.source import TensorSource

FILE = "generation_config.json"
GGUF_PREFIX = "general.sampling."
GGUF_NAMES = {"temperature": "temp", "repetition_penalty": "penalty_repeat"}
# What is said of these is always shown; of the rest, only what asks for something.
_ALWAYS = ("temperature", "top_k", "top_p", "min_p")
# Keys that would choose other tokens and are not applied -> values with which they ask for nothing.
_NOT_APPLIED: Mapping[str, tuple[float, ...]] = {
    "encoder_repetition_penalty": (1,), "penalty_alpha": (0,), "no_repeat_ngram_size": (0,),
    "epsilon_cutoff": (0,), "eta_cutoff": (0,), "top_h": (), "num_beams": (1,),
    "bad_words_ids": (), "suppress_tokens": (), "begin_suppress_tokens": (), "sequence_bias": (),
    "guidance_scale": (1,), "min_length": (0,), "min_new_tokens": (0,),
    # GGUF's
    "mirostat": (0,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values for the fields that a request leaves out, and what the file asks for beyond them."""

    values: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_sampling_defaults(source: TensorSource) -> SamplingDefaults:
    """The file's own sampling values; a value out of range is an error that names its key."""
    if source.format == "gguf":
        return _read(source.metadata, "the file", GGUF_PREFIX, GGUF_NAMES)
    raw = source.file(FILE)
    if raw is None:
        return SamplingDefaults()
    path = source.path / FILE if source.path.is_dir() else source.path.with_name(FILE)
    keys = Metadata(path, parse_object(path, "file", raw))
    defaults = _read(keys, FILE, "", {})
    if defaults.values and keys.boolean("do_sample", None) is False:
        note = f"{FILE}: do_sample is false, so its sampling values are not applied."
        return SamplingDefaults(notes=(*defaults.notes, note))
    return defaults


def _read(keys: Metadata, where: str, prefix: str, names: Mapping[str, str]) -> SamplingDefaults:
    def key(name: str) -> str:
        return prefix + names.get(name, name)

    values: dict[str, float | None] = {
        "temperature": keys.number(key("temperature"), None, minimum=0.0, maximum=1e6),
        # -1 and 0 are how files write that there is no limit.
        "top_k": keys.integer(key("top_k"), None, minimum=-1, maximum=2**31 - 1),
        "top_p": keys.number(key("top_p"), None, minimum=1e-6, maximum=1.0),
        "min_p": keys.number(key("min_p"), None, minimum=0.0, maximum=1.0),
        "typical_p": keys.number(key("typical_p"), None, minimum=1e-6, maximum=1.0),
        "xtc_probability": keys.number(key("xtc_probability"), None, minimum=0.0, maximum=1.0),
        "xtc_threshold": keys.number(key("xtc_threshold"), None, minimum=1e-6, maximum=1.0),
        "repetition_penalty": keys.number(
            key("repetition_penalty"), None, minimum=1e-6, maximum=100.0
        ),
        "presence_penalty": keys.number(key("presence_penalty"), None, minimum=-2.0, maximum=2.0),
        "frequency_penalty": keys.number(key("frequency_penalty"), None, minimum=-2.0, maximum=2.0),
        "penalty_last_n": keys.integer(key("penalty_last_n"), None, minimum=-1, maximum=4096),
    }
    given = {
        name: _as_meant(value)
        for name, value in values.items()
        if value is not None and (name in _ALWAYS or value != SamplingParams.DEFAULTS[name])
    }
    notes = [
        note
        for name, neutral in _NOT_APPLIED.items()
        if (note := _note(keys, where, prefix + name, neutral)) is not None
    ]
    return SamplingDefaults(given, tuple(notes))


def _as_meant(value: float) -> float:
    """A number that was stored in 32 bits as it was written: 0.7, not 0.699999988."""
    if isinstance(value, int):
        return max(0, value)
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value


def _note(keys: Metadata, where: str, key: str, neutral: tuple[float, ...]) -> str | None:
    """What to say of a key that is not applied; None where it asks for nothing."""
    if not keys.has(key):
        return None
    try:
        number = keys.number(key)
    except ModelFileError:  # no number: of what it is, only the name is shown
        return f"{where}: {key} is not applied."
    return None if number in neutral else f"{where}: {key} {number:g} is not applied."
