"""A folder as Hugging Face lays it out, quantised: a file of tensors, the config, and what else it
needs.

Matrices of the layers become compressed-tensors' packed integers (4 or 8 bits, groups of 32, scales
of float16), which hold the numbers of Q4_0 and Q8_0 blocks, and embedding and head stay as they
are; or all become floats.

    X.weight_packed int32 [n, k * bits / 32], X.weight_scale float16 [n, k / 32],
    X.weight_shape int64 [2]

Not here: which numbers (``rounding``). Always true: a matrix's three tensors are neighbours in the
file, in this order, so that it is written and read as one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.kernels.assemble import assemble
from insitu.kernels.block_parts import Unpacked
from insitu.kernels.blocks import FLOATS, BlockType, unpack
from insitu.quantize.errors import QuantizeError
from insitu.quantize.layout import Target, Types
from insitu.weights.prequantized import KEY
from insitu.weights.safetensors import CONFIG, WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    from insitu.kernels.block_parts import Bytes
    from insitu.kernels.pack import PackedLinear
    from insitu.models.load import LoadedModel
    from insitu.weights.tensors import TensorInfo, TensorSource

GROUP = 32
_NUM_BITS = {BlockType.Q4_0: 4, BlockType.Q8_0: 8}
# What a folder may hold beside its weights and config, and a quantised one needs as well.
_BESIDE = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "generation_config.json", "chat_template.jinja", "chat_template.json", "vocab.json",
    "merges.txt", "tokenizer.model", "LICENSE",
)  # fmt: skip


class CheckpointForm:
    """How such a folder is written."""

    def __init__(
        self, folder: Path, source: TensorSource, model: LoadedModel, types: Types
    ) -> None:
        self.path = folder / WEIGHTS
        self._source, self._types = source, types
        _require_types(types)
        types.require_names(source.tensors)
        self._matrices = _matrices(model, source)
        self.targets = self._lay_out()
        packed = [name for name, n, k in self._packed()]
        self._others = [
            info.name.removesuffix(".weight")
            for info in source.tensors.values()
            if len(info.shape) == 2 and info.name not in packed
        ]
        raw = json.dumps(self._entries(), separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)
        self.header = len(raw).to_bytes(8, "little") + raw
        self.num_bytes = sum(target.num_bytes for target in self.targets)

    def prepare(self) -> None:
        """The folder, and all in it but the weights."""
        self.path.parent.mkdir(exist_ok=True)
        config = json.loads(self._source.file(CONFIG) or b"{}")
        config.pop(KEY, None)
        if self._types.layers in _NUM_BITS:
            config[KEY] = _settings(_NUM_BITS[self._types.layers], self._others)
        (self.path.parent / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        for name in _BESIDE:
            content = self._source.file(name)
            if content is not None:
                (self.path.parent / name).write_bytes(content)

    def stored(self, target: Target, blocks: bytes | memoryview) -> bytes | memoryview:
        """A tensor's blocks as they lie in the file."""
        if target.is_kept or target.block_type in FLOATS:
            return blocks
        num_bits = _NUM_BITS[target.block_type]
        parts = unpack(target.block_type, blocks, target.n, target.k)
        u = (parts.q.astype(np.int16) + (1 << (num_bits - 1))).astype(np.uint8)
        words = u if num_bits == 8 else u[:, ::2] | (u[:, 1::2] << 4)
        shape = np.array([target.n, target.k], np.int64)
        return words.tobytes() + parts.d.astype(np.float16).tobytes() + shape.tobytes()

    def blocks(self, target: Target, stored: bytes) -> Bytes:
        """The way back."""
        raw = np.frombuffer(stored, np.uint8)
        if target.block_type in FLOATS:
            return raw
        num_bits = _NUM_BITS[target.block_type]
        end = target.n * target.k * num_bits // 8
        words = raw[:end]
        u = words if num_bits == 8 else np.stack([words & 15, words >> 4], axis=1)
        q = u.reshape(target.n, target.k).astype(np.int16) - (1 << (num_bits - 1))
        d = raw[end:-16].view(np.float16).astype(np.float32).reshape(target.n, -1)
        return assemble(target.block_type, Unpacked(q.astype(np.int8), d))

    def _lay_out(self) -> list[Target]:
        targets, offset = [], 0
        for info in self._source.tensors.values():
            kind, is_kept = self._type_of(info)
            num_bytes = info.num_bytes if is_kept else _num_bytes(info, kind)
            targets.append(Target(info.name, info.shape, kind, is_kept, num_bytes, offset))
            offset += num_bytes
        return targets

    def _type_of(self, info: TensorInfo) -> tuple[BlockType, bool]:
        """Vectors, routers and what is no matrix of a layer stay as they are."""
        is_float = self._types.layers in FLOATS
        wanted = self._types.of(info.name)
        is_wanted = info.name in self._matrices or (is_float and len(info.shape) == 2)
        if is_wanted and (wanted in FLOATS or info.shape[-1] % GROUP == 0):
            return wanted, False
        if info.block_type in FLOATS:
            return info.block_type, True
        return BlockType.F32, False  # was packed, and is nothing that is packed here

    def _packed(self) -> list[tuple[str, int, int]]:
        return [(t.name, t.n, t.k) for t in self.targets if t.block_type in _NUM_BITS]

    def _entries(self) -> dict[str, Any]:
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        at = 0
        for target in self.targets:
            for name, dtype, shape, num_bytes in _tensors(target):
                span = [at, at + num_bytes]
                entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": span}
                at += num_bytes
        return entries


def _tensors(target: Target) -> list[tuple[str, str, list[int], int]]:
    """Name, dtype, shape and bytes of what a tensor becomes."""
    if target.block_type in FLOATS:
        return [(target.name, str(target.block_type), list(target.shape), target.num_bytes)]
    n, k, bits = target.n, target.k, _NUM_BITS[target.block_type]
    return [
        (f"{target.name}_packed", "I32", [n, k * bits // 32], n * k * bits // 8),
        (f"{target.name}_scale", "F16", [n, k // GROUP], n * k // GROUP * 2),
        (f"{target.name}_shape", "I64", [2], 16),
    ]


def _num_bytes(info: TensorInfo, kind: BlockType) -> int:
    count = int(np.prod(info.shape, dtype=np.int64))
    if kind in FLOATS:
        return count * kind.block_bytes
    return count * _NUM_BITS[kind] // 8 + count // GROUP * 2 + 16


def _require_types(types: Types) -> None:
    """One width of integers, which a config can say; and floats."""
    if types.layers not in (*_NUM_BITS, *FLOATS):
        wanted = ", ".join(map(str.lower, (*_NUM_BITS, *FLOATS)))
        message = f"a folder of safetensors holds {wanted}."
        raise QuantizeError(f"--type {types.layers.lower()}: {message}")
    others = [("--head-type", types.head), *((f"--tensor {p}", kind) for p, kind in types.named)]
    for flag, kind in others:
        if kind is not None and kind is not types.layers and kind not in FLOATS:
            message = "a folder of safetensors has integers of one width."
            raise QuantizeError(f"{flag} {kind.lower()}: {message}")


def _matrices(model: LoadedModel, source: TensorSource) -> set[str]:
    """Tensors that are whole matrices of layers, routers apart."""
    program = model.program
    choosing = {op.inputs[-1] for op in program.ops if op.kind in ("route", "gate_rows")}
    linears: list[PackedLinear] = []
    for op in program.ops:
        is_plain = op.kind == "linear" and op.outputs[0] is not program.logits
        if is_plain and op.outputs[0] not in choosing:
            linears.append(op.weight)
        if op.kind == "experts":
            linears.extend((*op.weight.gate_up, *op.weight.down))
    segments = [segment for linear in linears for segment in linear.segments]
    return {
        segment.name
        for segment in segments
        if source.tensors[segment.name].shape == (segment.n, segment.k)
        and not segment.is_transposed
    }


def _settings(num_bits: int, others: list[str]) -> dict[str, Any]:
    """compressed-tensors' config."""
    weights = {
        "num_bits": num_bits, "type": "int", "symmetric": True, "strategy": "group",
        "group_size": GROUP, "dynamic": False,
    }  # fmt: skip
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": others,
    }
