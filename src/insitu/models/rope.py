"""How positions turn heads: theta, the dims that turn, and what stretches them over long contexts.

Every way to stretch becomes one divisor a pair of dims, a magnitude, or another theta. Two of them
depend on a length: that is the longest sequence the engine will take, fixed when the model is
loaded, never the length a sequence happens to have.

Not here: the formulas (``rope_scaling``), or angles themselves (``kernels``).

Always true: a setting that was not understood is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from insitu.models.keys import MAX_MODEL_LEN, Keys
from insitu.models.rope_scaling import (
    by_wavelength,
    dynamic,
    linear,
    longrope_magnitude,
    yarn,
    yarn_magnitude,
)
from insitu.models.spec import RopeSpec
from insitu.weights.metadata import Metadata
from insitu.weights.place import Placement

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.models.spec import Pairing

DEFAULT_THETA = 10000.0
_ORIGINAL = "original_max_position_embeddings"
_EVERY_KIND = {"rope_theta", "rope_type", "type"}
# By the name in config.json: the settings it has.
_SETTINGS = {
    "default": {"factor"},
    "linear": {"factor"},
    "dynamic": {"factor"},
    "yarn": {"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale"}
    | {"mscale_all_dim", "truncate"},
    "llama3": {"factor", _ORIGINAL, "low_freq_factor", "high_freq_factor"},
    "longrope": {"factor", _ORIGINAL, "attention_factor", "short_factor", "long_factor"},
}


class RopeReader:
    """Reads the rope of one file, for sequences of up to ``asked_len`` tokens.

    Without it they may be as long as the model's own length, stretched.
    """

    def __init__(self, keys: Keys, asked_len: int | None) -> None:
        self.keys = keys
        self.file_len = keys.integer(
            "context_length", "max_position_embeddings", most=MAX_MODEL_LEN
        )
        self.asked_len = asked_len
        self.max_model_len = self.file_len  # of the model, once it is stretched
        self._known = _EVERY_KIND

    def read(
        self,
        head_dim: int,
        pairing: Pairing,
        *,
        theta: float = DEFAULT_THETA,
        rotary: float | None = None,
    ) -> RopeSpec:
        """The file's rope; ``theta`` and ``rotary`` hold where it is silent.

        ``rotary``: the part of a head that turns, in families that may turn a part.
        """
        if self.keys.is_gguf:
            return self._read_gguf(head_dim, pairing, theta)
        return self._read_config(head_dim, pairing, theta, rotary)

    def read_mapping(
        self, rope: Metadata, head_dim: int, pairing: Pairing, theta: float
    ) -> RopeSpec:
        """One of several ropes that a config.json describes; ``theta`` where it is silent."""
        theta = rope.number("rope_theta", theta, minimum=1e-6, maximum=1e30)
        return self._of_kind(rope, _kind(rope), RopeSpec(theta, head_dim, pairing))

    # --- config.json ---------------------------------------------------------------------------

    def _read_config(
        self, head_dim: int, pairing: Pairing, theta: float, rotary: float | None
    ) -> RopeSpec:
        keys = self.keys
        rope = self._config_mapping()
        told = {
            "rope_theta": keys.number(None, "rope_theta", None),
            "rope_parameters.rope_theta": rope.number(
                "rope_theta", None, minimum=1e-6, maximum=1e30
            ),
        }
        theta = _agreed(keys, told, theta)
        dim = head_dim
        if rotary is not None:
            self._known = _EVERY_KIND | {"partial_rotary_factor"}
            told = {
                "partial_rotary_factor": keys.number(None, "partial_rotary_factor", None, most=1),
                "rope_parameters.partial_rotary_factor": rope.number(
                    "partial_rotary_factor", None, minimum=1e-6, maximum=1
                ),
            }
            dim = int(head_dim * _agreed(keys, told, rotary))
        return self._of_kind(rope, _kind(rope), RopeSpec(theta, dim, pairing))

    def _config_mapping(self) -> Metadata:
        """`rope_scaling` and the newer `rope_parameters`, which may repeat each other."""
        keys = self.keys
        keys.ignore("rope_scaling", "rope_parameters")
        older = keys.metadata.mapping("rope_scaling")
        newer = keys.metadata.mapping("rope_parameters")
        if older is not None and any(older.has(key) for key in older.keys()):  # noqa: SIM118
            if not older.has("rope_type") and not older.has("type"):
                raise older.fault("rope_type", "is missing")
            return older if newer is None else older.merged(newer)
        return newer or Metadata(keys.source.path, {})

    def _of_kind(self, rope: Metadata, kind: str, plain: RopeSpec) -> RopeSpec:
        reads: dict[str, Callable[[Metadata, RopeSpec], RopeSpec]] = {
            "default": self._default,
            "linear": self._linear,
            "dynamic": self._dynamic,
            "yarn": self._yarn,
            "llama3": self._by_wavelength,
            "longrope": self._longrope,
        }
        if kind not in reads:
            known = ", ".join(reads)
            raise rope.fault("rope_type", f"rope scaling {kind!r} is not supported ({known})")
        for key in rope.keys():  # noqa: SIM118
            if key not in self._known | _SETTINGS[kind] and rope.has(key):
                raise rope.fault(key, f"is not a setting of rope type {kind!r}")
        try:
            return reads[kind](rope, plain)
        except ArithmeticError:
            raise rope.fault("rope_type", f"{kind!r} has settings that give no angles") from None

    def _default(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        factor = rope.number("factor", 1.0)
        if factor != 1.0:
            raise rope.fault("factor", f"{factor} is given, but no scaling kind uses it")
        return plain

    def _linear(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        return linear(plain, _factor(rope))

    def _dynamic(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        factor, original = _factor(rope), self.file_len
        self.max_model_len = max(original, int(original * factor))
        return dynamic(plain, factor, original, max(self._length(), original))

    def _yarn(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        original = self._original_len(rope, self.file_len)
        factor = _factor(rope, self.file_len / original)
        self.max_model_len = max(self.file_len, int(original * factor))
        fast = rope.number("beta_fast", 32.0, minimum=1e-3, maximum=1e6)
        slow = rope.number("beta_slow", 1.0, minimum=1e-3, maximum=1e6)
        magnitude = rope.number("attention_factor", None, minimum=1e-6, maximum=1e6)
        if magnitude is None:
            scales = [rope.number(key, 0.0, minimum=0) for key in ("mscale", "mscale_all_dim")]
            magnitude = yarn_magnitude(factor, *scales)
        is_whole = rope.boolean("truncate", default=True)
        ramp = (fast, slow, original)
        return yarn(plain, factor, ramp, magnitude, is_whole=is_whole)

    def _by_wavelength(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        original = self._original_len(rope, self.file_len)
        low = rope.number("low_freq_factor", minimum=1e-6, maximum=1e6)
        high = rope.number("high_freq_factor", minimum=1e-6, maximum=1e6)
        if low >= high:
            raise rope.fault("low_freq_factor", f"{low:g} is not below {high:g}")
        return by_wavelength(plain, _factor(rope), low, high, original)

    def _longrope(self, rope: Metadata, plain: RopeSpec) -> RopeSpec:
        original = self._original_len(rope, self.file_len)
        factor = rope.number("factor", self.file_len / original, minimum=1e-6, maximum=1e6)
        magnitude = rope.number("attention_factor", None, minimum=1e-6, maximum=1e6)
        if magnitude is None:
            magnitude = longrope_magnitude(factor, original)
        length, which = self._length(), "short_factor"
        if length > original:
            which = "long_factor"
        divisors = tuple(rope.numbers(which))
        scaling = f"longrope, {which} for {length} positions"
        return RopeSpec(plain.theta, plain.dim, plain.pairing, divisors, magnitude, scaling)

    def _length(self) -> int:
        return self.asked_len or self.max_model_len

    def _original_len(self, rope: Metadata, default: int) -> int:
        """Positions the model was first trained for."""
        told = self.keys.integer(None, _ORIGINAL, default, most=MAX_MODEL_LEN)
        return rope.integer(_ORIGINAL, told, minimum=1, maximum=MAX_MODEL_LEN)

    # --- GGUF ----------------------------------------------------------------------------------

    def _read_gguf(self, head_dim: int, pairing: Pairing, theta: float) -> RopeSpec:
        keys = self.keys
        theta = keys.number("rope.freq_base", None, theta)
        dim = keys.integer("rope.dimension_count", None, head_dim)
        plain = RopeSpec(theta, dim, pairing)
        kind = keys.string("rope.scaling.type", None, "none")
        original = keys.integer(
            "rope.scaling.original_context_length", None, self.file_len, most=MAX_MODEL_LEN
        )
        if kind == "none" and "rope_freqs.weight" in keys.source.tensors:
            divisors = self._factors("rope_freqs.weight", dim // 2)
            return RopeSpec(theta, dim, pairing, divisors, scaling="factors of the file")
        if kind in ("none", "longrope") and "rope_factors_long.weight" in keys.source.tensors:
            return self._gguf_longrope(plain, original)
        if "rope_freqs.weight" in keys.source.tensors:
            raise keys.refuse("rope_freqs.weight", f"rope scaling {kind!r} beside it is not done")
        factor = self._gguf_factor(kind)
        if kind in ("none", "linear"):
            return linear(plain, factor) if factor != 1 else plain
        if kind == "yarn":
            return self._gguf_yarn(plain, factor, original)
        where = keys.key("rope.scaling.type", None)
        raise keys.refuse(where, f"rope scaling {kind!r} is not supported (none, linear, yarn)")

    def _gguf_longrope(self, plain: RopeSpec, original: int) -> RopeSpec:
        keys, length = self.keys, self._length()
        name = "rope_factors_long.weight" if length > original else "rope_factors_short.weight"
        divisors = self._factors(name, plain.dim // 2)
        magnitude = keys.number("rope.scaling.attn_factor", None, 1.0)
        keys.has("rope.scaling.factor", None)  # the magnitude says it already
        scaling = f"{name} for {length} positions"
        return RopeSpec(plain.theta, plain.dim, plain.pairing, divisors, magnitude, scaling)

    def _gguf_yarn(self, plain: RopeSpec, factor: float, original: int) -> RopeSpec:
        keys = self.keys
        fast = keys.number("rope.scaling.yarn_beta_fast", None, 32.0)
        slow = keys.number("rope.scaling.yarn_beta_slow", None, 1.0)
        told = keys.number("rope.scaling.attn_factor", None, 1.0)
        magnitude = told * yarn_magnitude(factor, 0.0, 0.0)
        self.max_model_len = max(self.file_len, int(original * factor))
        try:
            return yarn(plain, factor, (fast, slow, original), magnitude, is_whole=True)
        except ArithmeticError:
            where = keys.key("rope.scaling.factor", None)
            raise keys.refuse(where, f"{factor:g} gives no angles") from None

    def _gguf_factor(self, kind: str) -> float:
        keys = self.keys
        for name in ("rope.scaling.factor", "rope.scale_linear"):
            if not keys.has(name, None):
                continue
            factor = keys.number(name, None, most=1e6)
            # Old files give scale_linear alone; a factor without a kind would be guesswork.
            if kind != "none" or name == "rope.scale_linear":
                return factor
            if factor != 1.0:
                where = keys.key(name, None)
                raise keys.refuse(where, f"{factor} is given, but rope.scaling.type is {kind!r}")
        if kind in ("linear", "yarn"):
            raise keys.refuse(keys.key("rope.scaling.factor", None), "is missing")
        return 1.0

    def _factors(self, name: str, length: int) -> tuple[float, ...]:
        values = Placement(self.keys.source).vector(name, length)
        if not (values > 0).all():
            raise self.keys.refuse(name, "holds a factor that is not above 0")
        return tuple(float(value) for value in values)


def _kind(rope: Metadata) -> str:
    kinds = {rope.string(key) for key in ("rope_type", "type") if rope.has(key)}
    if len(kinds) > 1:
        raise rope.fault("rope_type", f"type and rope_type differ: {sorted(kinds)}")
    return next(iter(kinds), "default")


def _factor(rope: Metadata, default: float | None = None) -> float:
    if default is not None:
        return rope.number("factor", default, minimum=1e-6, maximum=1e6)
    return rope.number("factor", minimum=1e-6, maximum=1e6)


def _agreed(keys: Keys, values: dict[str, float | None], default: float) -> float:
    """The one value that all spellings give."""
    given = {key: value for key, value in values.items() if value is not None}
    if len(set(given.values())) > 1:
        told = ", ".join(f"{key} {value}" for key, value in given.items())
        raise keys.refuse(next(iter(given)), f"is given twice and differs: {told}")
    return next(iter(given.values()), default)
