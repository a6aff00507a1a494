"""A model as a file of the other format would hold it: a source to read it from.

What a family reads of a file it reads by both formats' names, so that what was heard of one can be
said in the other; and what was said is read back, by the same family, and must be the same model.

Not here: vocabularies (the caller adds them), tensors (``twin_tensors``), or writing files.

Always true: a twin has the spec of its original, numbers rounded to float32 apart; what one format
has no words for is refused with the name of what would be lost.
"""

from __future__ import annotations

import dataclasses
import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from insitu.kernels.blocks import BlockType
from insitu.models.families import families
from insitu.models.keys import Listener
from insitu.models.load import family_of, place
from insitu.models.spec import DecoderSpec, RopeSpec
from insitu.models.twin_rope import config_rope, gguf_rope
from insitu.models.twin_tensors import TwinTensors
from insitu.weights.errors import ModelFileError, UnsupportedModelError
from insitu.weights.metadata import Metadata
from insitu.weights.tensors import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from insitu.kernels.block_parts import Float32
    from insitu.models.names import Twin
    from insitu.models.twin_tensors import Tensor
    from insitu.models.weights import Weights
    from insitu.weights.tensors import TensorSource

Format = Literal["gguf", "safetensors"]
CONFIG = "config.json"
_CLOSE = 1e-6  # numbers of a GGUF file are float32
_OF_NO_NUMBER = frozenset({"pairing", "scaling"})  # of a rope: rows are ordered for the one


class TwinSource:
    """A ``TensorSource`` in the other format than the file it reads."""

    def __init__(
        self, source: TensorSource, form: Format, values: dict[str, Any], tensors: dict[str, Tensor]
    ) -> None:
        self._source = source
        self.format: str = form
        self.path: Path = source.path
        self.size_bytes = source.size_bytes
        self.values = values
        self.files: dict[str, bytes] = {}
        self._makers = {name: make for name, (_, make) in tensors.items()}
        infos = {name: info for name, (info, _) in tensors.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(infos)

    @property
    def metadata(self) -> Metadata:
        """Keys as the other format names them."""
        return Metadata(self.path, self.values)

    def read(self, name: str) -> memoryview:
        """A tensor's blocks, made now."""
        return memoryview(np.ascontiguousarray(self._makers[name]()).reshape(-1).data)

    def file(self, name: str) -> bytes | None:
        """Another file of a folder."""
        if name == CONFIG and self.format != "gguf":
            return (json.dumps(self.values, indent=2) + "\n").encode()
        return self.files.get(name)

    def digest(self) -> str:
        """Of the file that is read."""
        return self._source.digest()

    def close(self) -> None:
        """Let go of it."""
        self._source.close()


def twin_of(source: TensorSource, form: Format) -> TwinSource:
    """The model as a file of that format, without its vocabulary."""
    architecture, own = family_of(source)
    spec, weights = place(source, own)
    refusals: list[ModelFileError] = []
    for family in sorted(families(), key=lambda family: family is not own):
        for twin in family.TWINS:
            if architecture not in (twin.gguf, twin.config) or not twin.fits(spec):
                continue
            try:
                return _Made(source, spec, weights, family, twin).as_(form)
            except ModelFileError as error:
                refusals.append(error)
    why = str(refusals[0]).removeprefix(f"{source.path}: ")
    raise UnsupportedModelError(source.path, f"written as {form}", why)


class _Made:
    """One attempt: the model as one of the architectures that may be its twin."""

    def __init__(
        self,
        source: TensorSource,
        spec: DecoderSpec,
        weights: Weights,
        family: ModuleType,
        twin: Twin,
    ) -> None:
        self._source, self._spec, self._weights = source, spec, weights
        self._family, self._twin = family, twin

    def as_(self, form: Format) -> TwinSource:
        values, more = self._gguf() if form == "gguf" else self._config()
        names = self._twin.names[form]
        parts = TwinTensors(self._source.path, self._spec, self._weights, names)
        tensors = parts.all() | {name: _vector(name, x) for name, x in more.items()}
        made = TwinSource(self._source, form, values, tensors)
        spec, _ = place(made, family_of(made)[1])
        different = _difference(self._spec, spec)
        if different:
            raise UnsupportedModelError(self._source.path, *different)
        parts.turn = _turn(self._spec, spec)
        return made

    def _heard(self) -> dict[str, Any]:
        """What the twin's family reads of the file, by its names in the other format."""
        listener = Listener(self._source)
        self._family.spec_from(listener, None)
        is_gguf = self._source.format == "gguf"
        return {
            name: value
            for gguf, config, value in listener.heard
            if (name := config if is_gguf else gguf) and value is not None
        }

    def _gguf(self) -> tuple[dict[str, Any], Mapping[str, Float32]]:
        rope = gguf_rope(self._source, self._spec)
        heard = self._heard() | rope.values
        if "attention.key_length" in heard:
            heard["attention.value_length"] = heard["attention.key_length"]
        values = {
            f"{self._twin.gguf}.{name}": _narrow(value)
            for name, value in heard.items()
            if not _is_none(value)
        }
        return {"general.architecture": self._twin.gguf, **values}, rope.tensors

    def _config(self) -> tuple[dict[str, Any], Mapping[str, Float32]]:
        rope = config_rope(self._source, self._spec, self._spec.attention.head_dim)
        told = {"architectures": [self._twin.config], "model_type": self._twin.model_type}
        tied = {"tie_word_embeddings": self._weights.is_tied}
        heard = {name: None if _is_none(x) else _short(x) for name, x in self._heard().items()}
        return {**told, **heard, **rope.values, **tied, **self._biases()}, rope.tensors

    def _biases(self) -> dict[str, bool]:
        """Keys that say which linears have biases."""
        first = self._weights.layers[0]
        has = {"qkv": first.attention.qkv.bias is not None}
        gate_up = getattr(first.mlp, "gate_up", None)
        has["gate_up"] = gate_up is not None and gate_up.bias is not None
        return {key: True for role, key in self._twin.biases.items() if has[role]}


def _vector(name: str, values: Float32) -> Tensor:
    raw = values.view(np.uint8)
    info = TensorInfo(name, values.shape, BlockType.F32, values.nbytes, 0, is_made=True)
    return info, lambda: raw


def _is_none(value: Any) -> bool:
    """A window, a cap, a number of experts of 0: there is none."""
    return value == 0 and not isinstance(value, bool)


def _narrow(value: Any) -> Any:
    return float(np.float32(value)) if isinstance(value, float) else value


def _short(value: Any) -> Any:
    """A number of 32 bits as it was written: 1e-5, not 9.99999975e-06."""
    if not isinstance(value, float) or float(np.float32(value)) != value:
        return value
    return float(str(np.float32(value)))


def _turn(spec: DecoderSpec, wanted: DecoderSpec) -> np.ndarray | None:
    """A head's rows in the order that the other format has them in."""
    for rope, other in zip(spec.ropes, wanted.ropes, strict=True):
        if rope.pairing != other.pairing:
            pairs = np.arange(rope.dim).reshape(2, -1)  # both halves
            together = pairs.T.reshape(-1)
            return together if other.pairing == "adjacent" else np.argsort(together)
    return None


def _difference(own: Any, other: Any, where: str = "") -> tuple[str, str] | None:
    """The first number in which two specs differ: its name, and what it is in each."""
    if dataclasses.is_dataclass(own) and type(own) is type(other):
        skipped = _OF_NO_NUMBER if isinstance(own, RopeSpec) else frozenset()
        names = [field.name for field in dataclasses.fields(own) if field.name not in skipped]
        pairs = [(f"{where}.{name}", getattr(own, name), getattr(other, name)) for name in names]
    elif isinstance(own, tuple) and isinstance(other, tuple) and len(own) == len(other):
        pairs = [(f"{where}[{i}]", *both) for i, both in enumerate(zip(own, other, strict=True))]
    elif own == other or _is_close(own, other):
        return None
    else:
        return where.removeprefix("."), f"is {own}, and would be read as {other}"
    found = (_difference(mine, theirs, name) for name, mine, theirs in pairs)
    return next((one for one in found if one is not None), None)


def _is_close(own: Any, other: Any) -> bool:
    both = isinstance(own, float) and isinstance(other, float)
    return both and math.isclose(own, other, rel_tol=_CLOSE)
