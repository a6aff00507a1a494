"""How positions turn heads, said in the other format.

Not here: reading it (``rope``). What a format has no words for is refused by the caller, which
compares what was read with what is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.models.rope_scaling import yarn_magnitude
from insitu.models.rope_settings import settings_of
from insitu.weights.errors import UnsupportedModelError

if TYPE_CHECKING:
    from insitu.kernels.block_parts import Float32
    from insitu.models.spec import DecoderSpec, RopeSpec
    from insitu.weights.metadata import Metadata
    from insitu.weights.tensors import TensorSource

_LONG, _SHORT, _FREQS = (
    f"rope_{name}.weight" for name in ("factors_long", "factors_short", "freqs")
)
_ORIGINAL = "original_max_position_embeddings"
_YARN = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}


@dataclass(frozen=True, slots=True)
class TwinRope:
    """Keys and tensors."""

    values: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Float32] = field(default_factory=dict)


def gguf_rope(source: TensorSource, spec: DecoderSpec) -> TwinRope:
    """Of a config.json; keys lack the architecture."""
    if not spec.ropes:
        return TwinRope()
    whole, *local = spec.ropes
    values: dict[str, Any] = {"rope.freq_base": whole.theta, "rope.dimension_count": whole.dim}
    if local:
        # The one that any scaling stretches is of layers that see all.
        whole = next((rope for rope in spec.ropes if rope.divisors), _of_whole(spec) or whole)
        other = next(rope for rope in spec.ropes if rope != whole)
        values |= {"rope.freq_base": whole.theta, "rope.freq_base_swa": other.theta}
    settings = _settings(source)
    kind = "default"
    if settings is not None:
        kind = settings.string("rope_type", settings.string("type", "default"))
    if kind == "default":
        return TwinRope(values)
    assert settings is not None
    return _scaled(source, kind, settings, whole, values)


def _scaled(
    source: TensorSource, kind: str, settings: Metadata, rope: RopeSpec, values: dict[str, Any]
) -> TwinRope:
    config = source.metadata
    file_len = config.integer("max_position_embeddings")
    original = settings.integer(_ORIGINAL, config.integer(_ORIGINAL, file_len))
    original_key = {"rope.scaling.original_context_length": original}
    if kind in ("linear", "yarn"):
        factor = settings.number("factor", file_len / original)
        values |= {"rope.scaling.type": kind, "rope.scaling.factor": factor}
        if kind == "yarn":
            values |= original_key
            # Files of this format have what their readers' own magnitude is multiplied by.
            more = rope.magnitude / yarn_magnitude(factor, 0.0, 0.0)
            values |= {} if more == 1 else {"rope.scaling.attn_factor": more}
            values |= {
                f"rope.scaling.{gguf}": settings.number(key)
                for key, gguf in _YARN.items()
                if settings.has(key)
            }
        return TwinRope(values)
    if kind == "llama3":
        return TwinRope(values, {_FREQS: np.array(rope.divisors, np.float32)})
    if kind == "longrope":
        values |= {**original_key, "rope.scaling.attn_factor": rope.magnitude}
        factors = {_LONG: "long_factor", _SHORT: "short_factor"}
        tensors = {
            name: np.array(settings.numbers(key), np.float32) for name, key in factors.items()
        }
        return TwinRope(values, tensors)
    message = f"{kind!r} depends on a length, which GGUF has no key for"
    raise UnsupportedModelError(source.path, "rope_scaling", message)


def _settings(source: TensorSource) -> Metadata | None:
    """The mapping that says how rope is stretched."""
    newer = source.metadata.mapping("rope_parameters")
    whole = None if newer is None else newer.mapping("full_attention")
    return source.metadata.mapping("rope_scaling") or whole or newer


def config_rope(source: TensorSource, spec: DecoderSpec, head_dim: int) -> TwinRope:
    """Of a GGUF file."""
    whole = _of_whole(spec)
    if whole is None:
        return TwinRope()
    values: dict[str, Any] = {"rope_theta": whole.theta}
    if whole.dim != head_dim:
        values["partial_rotary_factor"] = whole.dim / head_dim
    if _FREQS in source.tensors:
        return TwinRope({**values, "rope_scaling": _of_factors(whole, _factors(source, _FREQS))})
    keys, prefix = source.metadata, f"{source.metadata.string('general.architecture')}.rope."
    file_len = keys.integer(prefix.removesuffix("rope.") + "context_length")
    original = keys.integer(f"{prefix}scaling.original_context_length", file_len)
    if _LONG in source.tensors:
        scaling: dict[str, Any] = {
            "type": "longrope",
            "long_factor": _factors(source, _LONG),
            "short_factor": _factors(source, _SHORT),
            "attention_factor": whole.magnitude,
        }
        values[_ORIGINAL] = original
        return TwinRope({**values, "rope_scaling": scaling})
    kind = whole.scaling.partition(" ")[0]
    if kind not in ("linear", "yarn"):
        return TwinRope(values)
    factor = keys.number(f"{prefix}scaling.factor", None)
    if factor is None:
        factor = keys.number(f"{prefix}scale_linear")
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling |= {_ORIGINAL: original, "attention_factor": whole.magnitude}
        for key, gguf in _YARN.items():
            if keys.has(f"{prefix}scaling.{gguf}"):
                scaling[key] = keys.number(f"{prefix}scaling.{gguf}")
    return TwinRope({**values, "rope_scaling": scaling})


def _of_factors(rope: RopeSpec, factors: list[float]) -> dict[str, Any]:
    """The settings they come from; where there are none, the factors, whatever the length."""
    plain = replace(rope, divisors=())
    found = settings_of(plain, factors)
    if found is not None:
        return found
    own = {"long_factor": factors, "short_factor": factors}
    return {"rope_type": "longrope", **own, "factor": 1.0, "attention_factor": rope.magnitude}


def _factors(source: TensorSource, name: str) -> list[float]:
    return [float(value) for value in np.frombuffer(source.read(name), np.float32)]


def _of_whole(spec: DecoderSpec) -> RopeSpec | None:
    """The rope of layers that see all positions, or else of any."""
    ropes = [layer.rope for layer in spec.layers if layer.rope is not None and not layer.window]
    return next(iter((*ropes, *spec.ropes)), None)
