"""How AWQ, GPTQ and compressed-tensors pack a linear: its tensors as integers and scales.

    AWQ       qweight [k, n/8], qzeros [groups, n/8], scales [groups, n]
    GPTQ      qweight [k/8, n], qzeros [groups, n/8], scales [groups, n], g_idx [k]
    compressed-tensors
              weight_packed [n, k/8], weight_scale [n, groups], weight_zero_point [n/8, groups],
              weight_g_idx [k], or weight int8 [n, k]

Words are int32 of eight 4-bit integers (or four of 8), lowest bits first. Not here: what becomes of
them (``prequantized``). Always true: weight = (integer - zero point) * scale, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from insitu.kernels.blocks import BlockType, decode
from insitu.weights.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from insitu.kernels.block_parts import Float32
    from insitu.weights.metadata import Metadata
    from insitu.weights.safetensors import SafetensorsFile

Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
_AWQ_ORDER = np.array((0, 2, 4, 6, 1, 3, 5, 7))  # nibble i holds the output of this number


class Packed(Protocol):
    """One linear's weight: ``integers`` less zero points, [n, k], all from ``low`` to ``high``."""

    name: str
    tensors: tuple[str, ...]
    n: int
    k: int
    low: int
    high: int
    is_in_order: bool  # groups are of neighbours; else (act-order) each input has its own scale

    def integers(self) -> Int16:
        """[n, k]."""
        ...

    def scales(self) -> Float32:
        """[n, groups], a group being so many neighbours in k; [n, k] where not in order."""
        ...


class Packing(Protocol):
    """A method with its settings, over one checkpoint."""

    method: str

    def linears(self) -> Iterator[Packed]:
        """Every packed linear."""
        ...


@dataclass(frozen=True)
class Reader:
    """Tensors of a checkpoint as arrays."""

    source: SafetensorsFile

    def has(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self.source.entries

    def prefixes(self, suffix: str) -> list[str]:
        """What comes before this suffix, of every tensor that ends so."""
        return [name.removesuffix(suffix) for name in self.source.entries if name.endswith(suffix)]

    def array(self, name: str, dtype: str, num_dims: int = 2) -> npt.NDArray[np.generic]:
        """A tensor of integers."""
        entry = self.source.entries.get(name)
        if entry is None:
            raise ModelFileError(self.source.path, f"tensor {name}", "is missing")
        if entry.dtype != dtype or len(entry.shape) != num_dims:
            message = f"is {entry.dtype} {list(entry.shape)}, not {dtype} of {num_dims} dimensions"
            raise ModelFileError(self.source.path, f"tensor {name}", message)
        self._require_some(name, entry.shape)
        kind = {"I32": "<i4", "I64": "<i8", "I8": "i1"}[dtype]
        return np.frombuffer(self.source.read(name), kind).reshape(entry.shape)

    def words(self, name: str) -> npt.NDArray[np.uint32]:
        """int32 [a, b], to be taken apart bit by bit."""
        return self.array(name, "I32").view(np.uint32)

    def floats(self, name: str) -> Float32:
        """A tensor of a float type, as float32."""
        info = self.source.tensors.get(name)
        if info is None:
            raise ModelFileError(self.source.path, f"tensor {name}", "is no tensor of floats")
        self._require_some(name, info.shape)
        rows, columns = ([1, 1, *info.shape])[-2:]
        kind = BlockType(info.block_type)
        return decode(kind, self.source.read(name), rows, columns).reshape(info.shape)

    def groups_of_inputs(self, name: str, k: int, num_groups: int) -> Int32 | None:
        """The group of each input, None where there is no such tensor or it says neighbours."""
        if not self.has(name):
            return None
        index = self.array(name, "I32", 1)
        self.require(name, index.shape, (k,))
        if np.array_equal(index, np.arange(k) // (k // num_groups)):
            return None
        if index.min() < 0 or index.max() >= num_groups:
            message = f"names groups from {index.min()} to {index.max()}, of {num_groups}"
            raise ModelFileError(self.source.path, f"tensor {name}", message)
        return np.asarray(index, np.int32)

    def _require_some(self, name: str, shape: tuple[int, ...]) -> None:
        if 0 in shape:
            message = f"has shape {list(shape)}, and so no numbers"
            raise ModelFileError(self.source.path, f"tensor {name}", message)

    def require(self, name: str, got: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        """Refuse a tensor whose shape does not fit the linear."""
        if got != wanted:
            message = f"has shape {list(got)}, not {list(wanted)}"
            raise ModelFileError(self.source.path, f"tensor {name}", message)


def packing_of(source: SafetensorsFile, settings: Metadata) -> Packing:
    """The method that quantization_config names."""
    method = settings.string("quant_method")
    makers: dict[str, Callable[[Reader, Metadata], Packing]]
    makers = {"awq": _Awq, "gptq": _Gptq, "compressed-tensors": _Compressed}
    make = makers.get(method)
    if make is None:
        message = f"{method!r} is not supported (awq, gptq, compressed-tensors)"
        raise UnsupportedModelError(source.path, "quantization_config.quant_method", message)
    return make(Reader(source), settings)


def unpacked(words: npt.NDArray[np.uint32], num_bits: int, axis: int) -> Int16:
    """Every field of the words, along this axis: it becomes 32 / num_bits times as long."""
    shifts = np.arange(0, 32, num_bits, dtype=np.uint32)
    fields = (words[..., None] >> shifts) & np.uint32((1 << num_bits) - 1)
    if axis == 0:
        fields = fields.transpose(0, 2, 1)
        return fields.reshape(-1, words.shape[1]).astype(np.int16)
    return fields.reshape(len(words), -1).astype(np.int16)


def _num_bits(settings: Metadata, key: str, allowed: tuple[int, ...]) -> int:
    num_bits = settings.integer(key)
    if num_bits not in allowed:
        wanted = " or ".join(map(str, allowed))
        raise settings.fault(key, f"is {num_bits}; {wanted} is supported")
    return num_bits


class _ByInput:
    """AWQ and GPTQ: words that run along k first, scales [groups, n]."""

    def __init__(self, reader: Reader, prefix: str, num_bits: int, *, is_awq: bool) -> None:
        self.name = f"{prefix}.weight"
        self._reader, self._prefix, self._num_bits, self._is_awq = reader, prefix, num_bits, is_awq
        count = 32 // num_bits
        rows, columns = reader.words(f"{prefix}.qweight").shape
        self.k, self.n = (rows, columns * count) if is_awq else (rows * count, columns)
        parts = ["qweight", "qzeros", "scales"]
        if not is_awq and reader.has(f"{prefix}.g_idx"):
            parts.append("g_idx")
        self.tensors = tuple(f"{prefix}.{part}" for part in parts)
        shape = reader.floats(f"{prefix}.scales").shape
        self._groups = shape[0]
        reader.require(f"{prefix}.scales", shape, (self._groups, self.n))
        zeros = reader.words(f"{prefix}.qzeros")
        reader.require(f"{prefix}.qzeros", zeros.shape, (self._groups, self.n // count))
        if self._groups < 1 or self.k % self._groups:
            reader.require(f"{prefix}.scales", (self._groups,), (self.k,))
        self._index = (
            None if is_awq else reader.groups_of_inputs(f"{prefix}.g_idx", self.k, self._groups)
        )
        self.is_in_order = self._index is None
        points = self._points()
        self.low, self.high = -int(points.max()), (1 << num_bits) - 1 - int(points.min())

    def _points(self) -> Int16:
        """Zero points [groups, n]; GPTQ stores them less one."""
        points = unpacked(self._reader.words(f"{self._prefix}.qzeros"), self._num_bits, axis=1)
        return self._ordered(points) if self._is_awq else points + np.int16(1)

    def _ordered(self, fields: Int16) -> Int16:
        parts = fields.reshape(len(fields), -1, len(_AWQ_ORDER))
        ordered = np.empty_like(parts)
        ordered[:, :, _AWQ_ORDER] = parts
        return ordered.reshape(fields.shape)

    def integers(self) -> Int16:
        words = self._reader.words(f"{self._prefix}.qweight")
        fields = unpacked(words, self._num_bits, axis=1 if self._is_awq else 0)
        q = self._ordered(fields) if self._is_awq else fields
        less: Int16 = q - _by_input(self._points(), self._index, self.k, axis=0)
        return np.ascontiguousarray(less.T)

    def scales(self) -> Float32:
        scales = self._reader.floats(f"{self._prefix}.scales")
        return np.ascontiguousarray((scales if self._index is None else scales[self._index]).T)


class _Awq:
    method = "awq"

    def __init__(self, reader: Reader, settings: Metadata) -> None:
        self._reader = reader
        _num_bits(settings, "bits", (4,))
        version = settings.string("version", "gemm").lower()
        if version != "gemm":
            raise settings.fault("version", f"{version!r} is not supported (gemm)")
        if not settings.boolean("zero_point", default=True):
            raise settings.fault("zero_point", "must be true")

    def linears(self) -> Iterator[Packed]:
        for prefix in self._reader.prefixes(".qweight"):
            yield _ByInput(self._reader, prefix, 4, is_awq=True)


class _Gptq:
    method = "gptq"

    def __init__(self, reader: Reader, settings: Metadata) -> None:
        self._reader = reader
        self._num_bits = _num_bits(settings, "bits", (4, 8))
        form = settings.string("checkpoint_format", "gptq")
        if form != "gptq":
            raise settings.fault("checkpoint_format", f"{form!r} is not supported (gptq)")

    def linears(self) -> Iterator[Packed]:
        for prefix in self._reader.prefixes(".qweight"):
            yield _ByInput(self._reader, prefix, self._num_bits, is_awq=False)


def _by_input(points: Int16, index: Int32 | None, k: int, axis: int) -> Int16:
    """Zero points of groups as those of inputs."""
    if index is None:
        return np.repeat(points, k // points.shape[axis], axis=axis)
    return np.take(points, index, axis=axis)


class _ByOutput:
    """compressed-tensors: integers about zero, words that run along k, scales [n, groups]."""

    def __init__(self, reader: Reader, prefix: str, num_bits: int, *, is_packed: bool) -> None:
        self.name = f"{prefix}.weight"
        self._reader, self._num_bits = reader, num_bits
        self._weight = f"{prefix}.weight_packed" if is_packed else self.name
        self._scale, self._point = f"{prefix}.weight_scale", f"{prefix}.weight_zero_point"
        self._is_packed, self._has_points = is_packed, reader.has(self._point)
        order, shape = f"{prefix}.weight_g_idx", f"{prefix}.weight_shape"
        told = reader.array(shape, "I64", 1) if is_packed else None
        if is_packed:
            rows, columns = reader.words(self._weight).shape
            columns *= 32 // num_bits
        else:
            rows, columns = reader.array(self._weight, "I8").shape
        self.n, self.k = rows, columns
        if told is not None:
            reader.require(self._weight, (rows, columns), tuple(int(size) for size in told))
        parts = [self._weight, self._scale, *([shape] if is_packed else [])]
        optional = [name for name in (self._point, order) if reader.has(name)]
        self.tensors = (*parts, *optional)
        self._index: Int32 | None = None
        shape_of_scales = self.scales().shape
        groups = self._groups = shape_of_scales[1]
        reader.require(self._scale, shape_of_scales, (self.n, groups))
        if not groups or self.k % groups:
            reader.require(self._scale, (self.n, groups), (self.n, self.k))
        self._index = reader.groups_of_inputs(order, self.k, groups)
        self.is_in_order = self._index is None
        half = 1 << (num_bits - 1)
        points = self._points()
        reader.require(self._point, points.shape, (self.n, groups))
        self.low, self.high = -half - int(points.max()), half - 1 - int(points.min())

    def _points(self) -> Int16:
        """Zero points [n, groups]."""
        if not self._has_points:
            return np.zeros((self.n, self._groups), np.int16)
        if not self._is_packed:
            return self._reader.array(self._point, "I8").astype(np.int16)
        points = unpacked(self._reader.words(self._point), self._num_bits, axis=0)
        return points[: self.n] - np.int16(1 << (self._num_bits - 1))

    def integers(self) -> Int16:
        if self._is_packed:
            fields = unpacked(self._reader.words(self._weight), self._num_bits, axis=1)
            q = fields - np.int16(1 << (self._num_bits - 1))
        else:
            q = self._reader.array(self._weight, "I8").astype(np.int16)
        return np.asarray(q - _by_input(self._points(), self._index, self.k, axis=1), np.int16)

    def scales(self) -> Float32:
        scales = self._reader.floats(self._scale)
        by_group = scales.reshape(len(scales), -1) if scales.ndim else scales.reshape(1, 1)
        return by_group if self._index is None else by_group[:, self._index]


class _Compressed:
    method = "compressed-tensors"
    _FORMATS = ("pack-quantized", "int-quantized")

    def __init__(self, reader: Reader, settings: Metadata) -> None:
        self._reader = reader
        form = settings.string("format")
        if form not in self._FORMATS:
            hint = ": FP8 is not supported" if form == "float-quantized" else ""
            wanted = ", ".join(self._FORMATS)
            raise settings.fault("format", f"{form!r} is not supported ({wanted}){hint}")
        self._is_packed = form == "pack-quantized"
        self._num_bits = self._read_groups(settings)

    def _read_groups(self, settings: Metadata) -> int:
        groups = settings.mapping("config_groups")
        found: set[int] = set()
        self._is_symmetric = False
        for key in groups.keys() if groups is not None else ():
            group = groups.mapping(key) if groups is not None else None
            weights = group.mapping("weights") if group is not None else None
            if weights is None:
                raise settings.fault(f"config_groups.{key}.weights", "is missing")
            kind = weights.string("type", "int")
            if kind != "int":
                raise weights.fault("type", f"{kind!r} is not supported (int)")
            found.add(_num_bits(weights, "num_bits", (4, 8) if self._is_packed else (8,)))
            self._is_symmetric |= weights.boolean("symmetric", default=True)
        if len(found) != 1:
            raise settings.fault("config_groups", f"has weights of {len(found)} widths, not one")
        return found.pop()

    def linears(self) -> Iterator[Packed]:
        suffix = ".weight_packed" if self._is_packed else ".weight_scale"
        for prefix in self._reader.prefixes(suffix):
            points = f"{prefix}.weight_zero_point"
            if not self._is_symmetric and not self._reader.has(points):
                message = "is missing, though the weights are not symmetric"
                raise ModelFileError(self._reader.source.path, f"tensor {points}", message)
            yield _ByOutput(self._reader, prefix, self._num_bits, is_packed=self._is_packed)
