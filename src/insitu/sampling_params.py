"""How the next token is chosen and when a choice ends, as a caller says it.

Not here: the arithmetic (``kernels/reference_sampling``) or the defaults of a model's file
(``models/sampling_defaults``). Always true: values that exist mean something; others were refused
by name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from insitu.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to stop.

    ``max_tokens`` None: to the end of the context. ``temperature`` 0 is greedy; ``top_k`` 0,
    ``top_p`` 1 and ``min_p`` 0 are off; None takes the model's default for it, else ``DEFAULTS``.
    ``seed`` None draws one, which the answer reports; each of ``n`` choices has noise of its own.
    ``logprobs`` None gives none; a number asks for that many alternatives beside the sampled token.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    DEFAULTS = MappingProxyType({"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
    MAX_LOGPROBS = 20
    MAX_N = 128
    MAX_STOP = 16
    MAX_STOP_CHARS = 1024

    def __post_init__(self) -> None:
        """Refuse values that mean nothing, naming the field."""
        stop = (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        ids = _listed("stop_token_ids", self.stop_token_ids)
        object.__setattr__(self, "stop_token_ids", ids)
        self._require_types()
        _require("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        _require(
            "temperature",
            self.temperature is None or 0 <= self.temperature <= sys.float_info.max,
            "a finite number >= 0",
        )
        _require("top_k", self.top_k is None or self.top_k >= 0, "at least 1, or 0 for no limit")
        _require("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and at most 1")
        _require("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1")
        _require("seed", self.seed is None or 0 <= self.seed < 2**64, "from 0 to 2**64 - 1")
        _require(
            "stop",
            len(self.stop) <= self.MAX_STOP
            and all(0 < len(text) <= self.MAX_STOP_CHARS for text in self.stop),
            f"up to {self.MAX_STOP} strings of 1 to {self.MAX_STOP_CHARS} characters",
        )
        _require(
            "logprobs",
            self.logprobs is None or 0 <= self.logprobs <= self.MAX_LOGPROBS,
            f"from 0 to {self.MAX_LOGPROBS}",
        )
        _require("n", 1 <= self.n <= self.MAX_N, f"from 1 to {self.MAX_N}")

    def _require_types(self) -> None:
        """Nothing is taken for a number, a text or a truth that is not one."""
        for name in ("max_tokens", "top_k", "seed", "logprobs"):
            value = getattr(self, name)
            _require(name, value is None or _is_whole(value), "a whole number")
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            _require(name, value is None or is_number, "a number")
        _require("stop", all(isinstance(one, str) for one in self.stop), "a string or several")
        _require("stop_token_ids", all(map(_is_whole, self.stop_token_ids)), "token ids")
        _require("ignore_eos", isinstance(self.ignore_eos, bool), "true or false")

    def over(self, defaults: Mapping[str, float]) -> Mapping[str, float]:
        """The names of ``DEFAULTS``, each with a value: asked for, else given, else our own."""
        asked = {name: getattr(self, name) for name in self.DEFAULTS}
        given = {name: value for name, value in asked.items() if value is not None}
        return {**self.DEFAULTS, **defaults, **given}


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
