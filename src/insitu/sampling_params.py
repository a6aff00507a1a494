"""How the next token is chosen and when a choice ends, as a caller says it.

Not here: the arithmetic (``kernels/reference_sampling``) or the defaults of a model's file
(``models/sampling_defaults``). Always true: values that exist mean something; others were refused
by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Range:
    """Which numbers a field takes, what it is where it is off, and how that is said."""

    off: float
    least: float
    most: float
    wanted: str
    is_whole: bool = False
    is_above: bool = False  # the least itself is not among them

    def holds(self, value: float) -> bool:
        """Whether a number is among them; NaN never is."""
        return self.least <= value <= self.most and not (self.is_above and value == self.least)


_MOST = sys.float_info.max
_MOST_ID = 2**31 - 1
# The numbers that a model's file may have defaults for.
RANGES: Mapping[str, Range] = MappingProxyType(
    {
        "temperature": Range(1.0, 0, _MOST, "a finite number >= 0"),
        "top_k": Range(0, 0, _MOST_ID, "at least 1, or 0 for no limit", is_whole=True),
        "top_p": Range(1.0, 0, 1, "above 0 and at most 1", is_above=True),
        "min_p": Range(0.0, 0, 1, "from 0 to 1"),
        "typical_p": Range(1.0, 0, 1, "above 0 and at most 1", is_above=True),
        "top_n_sigma": Range(0.0, 0, _MOST, "a finite number >= 0"),
        "xtc_probability": Range(0.0, 0, 1, "from 0 to 1"),
        "xtc_threshold": Range(0.1, 0, 1, "above 0 and at most 1", is_above=True),
        "repetition_penalty": Range(1.0, 0, 100, "above 0 and at most 100", is_above=True),
        "presence_penalty": Range(0.0, -2, 2, "from -2 to 2"),
        "frequency_penalty": Range(0.0, -2, 2, "from -2 to 2"),
        "penalty_last_n": Range(0, 0, 4096, "from 1 to 4096, or 0 for no limit", is_whole=True),
        "dry_multiplier": Range(0.0, 0, 1000, "from 0 to 1000"),
        "dry_base": Range(1.75, 1, 1000, "from 1 to 1000"),
        "dry_allowed_length": Range(2, 1, _MOST_ID, "at least 1", is_whole=True),
        "dry_last_n": Range(0, 0, _MOST_ID, "at least 1, or 0 for no limit", is_whole=True),
    }
)
# What ends a repetition: lines, and names as chats and lists write them.
DRY_BREAKERS = ("\n", ":", '"', "*")


class Order(IntEnum):
    """What follows what in truncation; ``top_n_sigma`` is first and ``xtc`` last of each."""

    OWN = 0  # temperature, min_p, top_k, top_p, typical_p
    HUGGINGFACE = 1  # temperature, top_k, top_p, min_p, typical_p
    LLAMA_CPP = 2  # top_k, typical_p, top_p, min_p; temperature only when choosing


LogprobsMode = Literal["raw", "processed"]


@dataclass(frozen=True, slots=True)
class Preset:
    """How another system does it: the order of its truncation, and what it does unasked."""

    order: Order = Order.OWN
    defaults: Mapping[str, float] = field(default_factory=dict)
    least_temperature: float = 0.0  # what is above 0 and below is raised to it


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "insitu": Preset(),
        "vllm": Preset(least_temperature=0.01),
        "huggingface": Preset(Order.HUGGINGFACE, {"top_k": 50}),
        "llama.cpp": Preset(
            Order.LLAMA_CPP,
            {
                "temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
                "penalty_last_n": 64,
            },
        ),
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop. docs/sampling.md has every formula.

    ``max_tokens`` None: to the end of the context. ``temperature`` 0 is greedy; ``DEFAULTS`` holds
    what each number is where it is off or absent; None takes the model's own value for it, else the
    ``sampling_preset``'s, else that. ``seed`` None draws one, which the answer reports; each of
    ``n`` choices has noise of its own. ``best_of`` so many are made, and the ``n`` likeliest kept.
    ``logprobs`` None gives none; a number asks for that many alternatives beside the sampled token;
    ``logprobs_mode``: of the model's own logits, or of what a token was chosen among.
    ``prompt_logprobs``: the same of the prompt's tokens, by the model's own logits.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_last_n: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_last_n: int | None = None
    dry_sequence_breakers: Sequence[str] = DRY_BREAKERS
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    sampling_preset: str = "insitu"
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logprobs_mode: LogprobsMode = "raw"
    prompt_logprobs: int | None = None
    n: int = 1
    best_of: int | None = None

    DEFAULTS = MappingProxyType({name: one.off for name, one in RANGES.items()})
    MAX_LOGPROBS = 20
    MAX_N = 128
    MAX_STOP = 16
    MAX_STOP_CHARS = 1024
    MAX_BIASES = 1024
    MAX_BIAS = 100.0
    MAX_WORDS = 64
    MAX_WORD_CHARS = 256

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, naming the field."""
        for name in ("stop", "stop_token_ids", "bad_words", "dry_sequence_breakers"):
            value = getattr(self, name)
            is_one = isinstance(value, str) and name != "stop_token_ids"
            object.__setattr__(self, name, (value,) if is_one else _listed(name, value))
        self._require_types()
        for name, one in RANGES.items():
            value = getattr(self, name)
            _require(name, value is None or one.holds(value), one.wanted)
        _require("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        _require("seed", self.seed is None or 0 <= self.seed < 2**64, "from 0 to 2**64 - 1")
        _require("min_tokens", self.min_tokens >= 0, "at least 0")
        _require("sampling_preset", self.sampling_preset in PRESETS, f"one of {', '.join(PRESETS)}")
        _require("logprobs_mode", self.logprobs_mode in {"raw", "processed"}, "raw or processed")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            is_within = value is None or 0 <= value <= self.MAX_LOGPROBS
            _require(name, is_within, f"from 0 to {self.MAX_LOGPROBS}")
        _require("n", 1 <= self.n <= self.MAX_N, f"from 1 to {self.MAX_N}")
        _require(
            "best_of",
            self.best_of is None or self.n <= self.best_of <= self.MAX_N,
            f"from n to {self.MAX_N}",
        )
        self._require_lists()

    def _require_lists(self) -> None:
        _require_texts("stop", self.stop, self.MAX_STOP, self.MAX_STOP_CHARS)
        _require_texts("bad_words", self.bad_words, self.MAX_WORDS, self.MAX_WORD_CHARS)
        breakers = self.dry_sequence_breakers
        _require_texts("dry_sequence_breakers", breakers, self.MAX_STOP, self.MAX_WORD_CHARS)
        most = self.MAX_BIAS
        _require(
            "logit_bias",
            len(self.logit_bias) <= self.MAX_BIASES
            and all(
                _is_whole(one) and _is_number(value) and -most <= value <= most
                for one, value in self.logit_bias.items()
            ),
            f"up to {self.MAX_BIASES} token ids with numbers from -{most:g} to {most:g}",
        )

    def _require_types(self) -> None:
        """Nothing is taken for a number, a text or a truth that is not one."""
        for name in ("max_tokens", "seed", "logprobs", "prompt_logprobs", "best_of"):
            value = getattr(self, name)
            _require(name, value is None or _is_whole(value), "a whole number")
        for name in ("n", "min_tokens"):
            _require(name, _is_whole(getattr(self, name)), "a whole number")
        for name, one in RANGES.items():
            value = getattr(self, name)
            is_kind = _is_whole if one.is_whole else _is_number
            kind = "a whole number" if one.is_whole else "a number"
            _require(name, value is None or is_kind(value), kind)
        for name in ("stop", "bad_words", "dry_sequence_breakers"):
            texts = getattr(self, name)
            _require(name, all(isinstance(one, str) for one in texts), "a string or several")
        _require("stop_token_ids", all(map(_is_whole, self.stop_token_ids)), "token ids")
        _require("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")
        is_mapping = isinstance(self.logit_bias, Mapping)
        _require("logit_bias", is_mapping, "a mapping of token ids to numbers")

    @property
    def num_choices(self) -> int:
        """How many choices are made."""
        return self.n if self.best_of is None else self.best_of

    @property
    def drops_choices(self) -> bool:
        """Whether more choices are made than are kept."""
        return self.num_choices > self.n

    @property
    def preset(self) -> Preset:
        """What the ``sampling_preset`` stands for."""
        return PRESETS[self.sampling_preset]

    def over(self, defaults: Mapping[str, float]) -> Mapping[str, float]:
        """The names of ``DEFAULTS``, each with a value.

        What was asked for, else given, else what the preset does unasked, else off.
        """
        asked = {name: getattr(self, name) for name in self.DEFAULTS}
        given = {name: value for name, value in asked.items() if value is not None}
        chosen = {**self.DEFAULTS, **self.preset.defaults, **defaults, **given}
        least = self.preset.least_temperature
        if 0 < chosen["temperature"] < least:
            chosen["temperature"] = least
        return chosen


def _require_texts(param: str, texts: Sequence[str], most: int, most_chars: int) -> None:
    _require(
        param,
        len(texts) <= most and all(0 < len(text) <= most_chars for text in texts),
        f"up to {most} strings of 1 to {most_chars} characters",
    )


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _listed(param: str, values: object) -> tuple[Any, ...]:
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | bytearray)
    _require(param, is_list, "a list")
    assert isinstance(values, Iterable)
    return tuple(values)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _require(param: str, holds: bool, wanted: str) -> None:
    if not holds:
        raise Refusal(f"{param} must be {wanted}.", param=param, code="invalid_value")
