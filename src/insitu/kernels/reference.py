"""Run a Program in NumPy: the definition of every operator, slow and obvious.

Not here: speed, threads, or checking of ids and ranges (native distrusts a batch; this trusts it).
A Program before ``quantize_activations`` is run as the model is meant: float32 over dequantised
weights. After it, as the kernels compute it: equal integers, float steps in the kernels' order.
(A fused multiply-add here may round twice, so native is compared within 2 ulp.)

Always true: an operator's result for a row depends on that row, and on the cache, alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from insitu.kernels import reference_attention, reference_experts, reference_linear
from insitu.kernels.block_parts import Unpacked
from insitu.kernels.blocks import BlockType, decode, unpack
from insitu.kernels.program import GROUPS, Rows
from insitu.kernels.reference_math import (
    LANES,
    QuantizedRows,
    exp,
    fma,
    gelu,
    gelu_in_order,
    in_lanes,
    lane_sum,
    quantize,
    quantize_inputs,
    reduce_lanes,
    tanh,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from insitu.kernels.kv_layout import KVLayout
    from insitu.kernels.pack import PackedLinear, Segment
    from insitu.kernels.program import BatchArrays, Op, Program, Tensor

Float32 = npt.NDArray[np.float32]


class Reference:
    """A Program's interpreter with its own KV cache; ``run`` is one step."""

    def __init__(self, program: Program, kv: KVLayout, *, keep_weights: bool = True) -> None:
        self._program = program
        self._in_kernel_order = program.is_quantized
        self._cache = reference_attention.Cache(kv)
        # Weights taken apart, by segment: large models are better off without.
        self._kept: dict[int, Float32 | Unpacked] | None = {} if keep_weights else None
        self._values: dict[Tensor, Any] = {}
        self._operators: dict[str, Callable[[Op, BatchArrays], Any]] = {
            "embed": self._embed,
            "rms_norm": self._rms_norm,
            "layer_norm": self._layer_norm,
            "quantize_rows": self._quantize_rows,
            "linear": self._linear,
            "rope_angles": self._rope_angles,
            "rope": self._rope,
            "attention": self._attention,
            "gated": self._gated,
            "activate": self._activated,
            "scale": self._scale,
            "soft_cap": self._soft_cap,
            "gate_rows": self._gate_rows,
            "route": self._route,
            "experts": self._experts,
            "add": self._add,
            "take": self._take,
        }

    def run(self, batch: BatchArrays) -> Float32:
        """One step: logits [R, vocab_size] of the batch's logit rows."""
        return self._run(batch, self._program.logits)

    def pool(self, batch: BatchArrays) -> Float32:
        """One step: the batch's pooled rows [P, width]."""
        return self._run(batch, self._program.pooled)

    def _run(self, batch: BatchArrays, wanted: Tensor | None) -> Float32:
        if wanted is None:
            raise ValueError("the program has no such output")
        num_rows = {
            Rows.TOKENS: len(batch.token_ids),
            Rows.LOGITS: len(batch.logit_rows),
            Rows.POOLED: len(batch.pooled_rows),
        }
        if num_rows[wanted.rows] == 0:
            self._values[wanted.owner] = np.empty((0, wanted.owner.width), np.float32)
        # Hostile weights make NaN and Inf on purpose; they are answers here, not mistakes.
        with np.errstate(all="ignore"):
            for op in self._program.ops:
                if num_rows[op.outputs[0].rows] == 0:
                    continue
                value, output = self._operators[op.kind](op, batch), op.outputs[0]
                if output.dtype in GROUPS and not isinstance(value, QuantizedRows):
                    rounded = quantize if op.kind == "linear" else quantize_inputs
                    value = rounded(value, GROUPS[output.dtype])
                self._write(output, value)
        answer: Float32 = self._read(wanted)
        self._values.clear()
        return answer

    def _read(self, tensor: Tensor) -> Any:
        value = self._values[tensor.owner]
        if tensor.base is None:
            return value
        return value[:, tensor.column : tensor.column + tensor.width]

    def _write(self, tensor: Tensor, value: Any) -> None:
        if tensor.base is None:
            self._values[tensor] = value
        else:
            self._values[tensor.owner][:, tensor.column : tensor.column + tensor.width] = value

    def _embed(self, op: Op, batch: BatchArrays) -> Float32:
        (segment,) = op.weight.segments
        ids = batch.positions if op.inputs[0] is self._program.positions else batch.token_ids
        rows = segment.rows(ids)
        return decode(rows.block_type, rows.raw(), rows.n, rows.k).copy()

    def _rms_norm(self, op: Op, _: BatchArrays) -> Float32:
        whole, eps = self._read(op.inputs[0]), np.float32(op.attributes["eps"])
        x = whole.reshape(-1, len(op.weight))
        if not self._in_kernel_order:
            mean = np.mean(x * x, axis=1, keepdims=True)
            return np.asarray(x / np.sqrt(mean + eps) * op.weight, np.float32).reshape(whole.shape)
        scale = np.float32(1) / np.sqrt(_mean_square(x) + eps)
        return np.asarray((x * scale[:, None]) * op.weight).reshape(whole.shape)

    def _layer_norm(self, op: Op, _: BatchArrays) -> Float32:
        x, eps = self._read(op.inputs[0]), np.float32(op.attributes["eps"])
        weight, bias = np.split(op.weight, 2)
        if not self._in_kernel_order:
            centred = x - np.mean(x, axis=1, keepdims=True)
            mean = np.mean(centred * centred, axis=1, keepdims=True)
            return np.asarray(centred / np.sqrt(mean + eps) * weight + bias, np.float32)
        centred = x - (lane_sum(x) / np.float32(x.shape[1]))[:, None]
        scale = np.float32(1) / np.sqrt(_mean_square(centred) + eps)
        return fma(centred * scale[:, None], weight, bias)

    def _quantize_rows(self, op: Op, _: BatchArrays) -> QuantizedRows:
        rounded = quantize if op.attributes["by_columns"] else quantize_inputs
        return rounded(self._read(op.inputs[0]), op.attributes["group"])

    def _linear(self, op: Op, _: BatchArrays) -> Float32:
        groups = op.attributes["groups"]
        forms = dict(zip(groups, map(self._read, op.inputs), strict=False))
        y = self._product(op.weight, forms)
        if op.attributes["has_residual"]:
            y = y + self._read(op.inputs[len(groups)])
        if "activation" in op.attributes:
            return self._gate(y, op.attributes["activation"])
        return self._cap(y, op.attributes["soft_cap"]) if "soft_cap" in op.attributes else y

    def _product(self, weight: PackedLinear, forms: dict[int, Any]) -> Float32:
        columns = [self._segment(segment, forms) for segment in weight.segments]
        y = np.concatenate(columns, axis=1)
        return y if weight.bias is None else y + weight.bias

    def _segment(self, segment: Segment, forms: dict[int, Any]) -> Float32:
        """One segment's outputs, from the form of the input that its group asks for."""
        group = segment.block_type.activation_group
        weight = self._weight(segment, is_unpacked=self._in_kernel_order and group > 0)
        if isinstance(weight, Unpacked):
            return reference_linear.multiply_quantized(segment.block_type, forms[group], weight)
        if self._in_kernel_order:
            return reference_linear.multiply_floats(forms[0], weight)
        return np.asarray(forms[0] @ weight.T)

    def _weight(self, segment: Segment, *, is_unpacked: bool) -> Float32 | Unpacked:
        kept = None if self._kept is None else self._kept.get(id(segment))
        if kept is None:
            take_apart = unpack if is_unpacked else decode
            block_type = BlockType(segment.block_type)
            kept = take_apart(block_type, segment.raw(), segment.n, segment.k)
            if self._kept is not None:
                self._kept[id(segment)] = kept
        return kept

    def _rope_angles(self, op: Op, batch: BatchArrays) -> Float32:
        dim, theta = op.attributes["dim"], np.float64(op.attributes["theta"])
        exponents = -2.0 * np.arange(dim // 2) / dim
        frequencies = np.exp(exponents * np.log(theta))
        if op.attributes["divisors"]:
            frequencies = frequencies / np.array(op.attributes["divisors"])
        angles = batch.positions.astype(np.float64)[:, None] * frequencies
        both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
        return np.asarray(both * op.attributes["magnitude"], np.float32)

    def _rope(self, op: Op, _: BatchArrays) -> Float32:
        x, angles = (self._read(tensor) for tensor in op.inputs)
        heads = x.reshape(len(x), op.attributes["num_heads"], op.attributes["head_dim"]).copy()
        dim = angles.shape[1]
        half = dim // 2
        if op.attributes["pairing"] == "adjacent":
            first, second = slice(0, dim, 2), slice(1, dim, 2)
        else:
            first, second = slice(0, half), slice(half, dim)
        cos, sin = angles[:, None, :half], angles[:, None, half:]
        a, b = heads[:, :, first].copy(), heads[:, :, second].copy()
        heads[:, :, first] = a * cos - b * sin
        heads[:, :, second] = a * sin + b * cos
        return np.asarray(heads.reshape(x.shape))

    def _attention(self, op: Op, batch: BatchArrays) -> Float32:
        q, k, v = (self._read(tensor) for tensor in op.inputs)
        layer, num_heads = op.attributes["layer"], op.attributes["num_heads"]
        self._cache.write(layer, batch.slot_mapping, k, v)
        scaled = (q * np.float32(op.attributes["scale"])).reshape(len(q), num_heads, -1)
        heads_per_kv = num_heads // op.attributes["num_kv_heads"]
        how = reference_attention.Attending(op.attributes["window"], op.attributes["soft_cap"])
        order = self._in_kernel_order
        attend = (
            reference_attention.attend_in_chunks if order else reference_attention.attend_plainly
        )
        out = np.empty_like(scaled)
        starts = batch.query_start_loc
        for seq, length in enumerate(batch.seq_lens):
            rows = slice(starts[seq], starts[seq + 1])
            stored = self._cache.read(layer, batch.block_table[seq], int(length))
            keys, values = (x.repeated(heads_per_kv) for x in stored)
            out[rows] = attend(scaled[rows], keys, values, batch.positions[rows], how)
        return np.asarray(out.reshape(q.shape))

    def _gated(self, op: Op, _: BatchArrays) -> Float32:
        return self._gate(self._read(op.inputs[0]), op.attributes["activation"])

    def _gate(self, x: Float32, activation: str) -> Float32:
        gate, up = np.split(x, 2, axis=1)
        return np.asarray(self._activation(activation, gate) * up)

    def _activated(self, op: Op, _: BatchArrays) -> Float32:
        return self._activation(op.attributes["activation"], self._read(op.inputs[0]))

    def _activation(self, name: str, x: Float32) -> Float32:
        if name == "gelu":
            return gelu_in_order(x) if self._in_kernel_order else gelu(x)
        power = exp(-x) if self._in_kernel_order else np.exp(-x)
        return np.asarray(x / (np.float32(1) + power))

    def _scale(self, op: Op, _: BatchArrays) -> Float32:
        return np.asarray(self._read(op.inputs[0]) * np.float32(op.attributes["scale"]))

    def _soft_cap(self, op: Op, _: BatchArrays) -> Float32:
        return self._cap(self._read(op.inputs[0]), op.attributes["soft_cap"])

    def _cap(self, x: Float32, soft_cap: float) -> Float32:
        cap = np.float32(soft_cap)
        if not self._in_kernel_order:
            return np.asarray(np.tanh(x / cap) * cap)
        return np.asarray(tanh(x * (np.float32(1) / cap)) * cap)

    def _gate_rows(self, op: Op, _: BatchArrays) -> Float32:
        x, gate = (self._read(tensor) for tensor in op.inputs)
        power = exp(-gate) if self._in_kernel_order else np.exp(-gate)
        return np.asarray(x * (np.float32(1) / (np.float32(1) + power)))

    def _route(self, op: Op, _: BatchArrays) -> Float32:
        how = op.attributes
        return reference_experts.route(
            self._read(op.inputs[0]), how["num_active"], is_normalised=how["is_normalised"]
        )

    def _experts(self, op: Op, _: BatchArrays) -> Float32:
        x, routing = (self._read(tensor) for tensor in op.inputs)
        out = np.zeros((len(x), op.outputs[0].width), np.float32)
        for e, (gate_up, down) in enumerate(zip(op.weight.gate_up, op.weight.down, strict=True)):
            rows = np.flatnonzero(routing[:, e])
            if len(rows) == 0:
                continue
            h = self._gate(self._product_of_floats(gate_up, x[rows]), op.attributes["activation"])
            y = self._product_of_floats(down, h)
            out[rows] = fma(y, routing[rows, e, None], out[rows])
        return out

    def _product_of_floats(self, weight: PackedLinear, x: Float32) -> Float32:
        """A linear over rows that become what its segments ask for."""
        groups = weight.groups if self._in_kernel_order else (0,)
        return self._product(weight, {g: quantize_inputs(x, g) if g else x for g in groups})

    def _add(self, op: Op, _: BatchArrays) -> Float32:
        a, b = (self._read(tensor) for tensor in op.inputs)
        return np.asarray(a + b)

    def _take(self, op: Op, batch: BatchArrays) -> Float32:
        is_pooled = op.inputs[1] is self._program.pooled_rows
        rows = batch.pooled_rows if is_pooled else batch.logit_rows
        return np.asarray(self._read(op.inputs[0])[rows])


def _mean_square(x: Float32) -> Float32:
    """[rows], in the kernels' order."""
    groups = in_lanes(x)
    squares = np.zeros((len(x), LANES), np.float32)
    for group in range(groups.shape[1]):
        squares = fma(groups[:, group], groups[:, group], squares)
    return np.asarray(reduce_lanes(squares) / np.float32(x.shape[1]))
