"""What rounding the inputs of linears to 8 bits costs a model, and what other roundings would.

    python benchmarks/rounding.py MODEL_FILE [--text FILE] [--tokens N] [--only PART]

A line for each plan: which kinds of linears round their inputs how, against the definition in
float32. NumPy alone: products are float32 over rounded inputs, which differs from the kernels' only
by the order of sums. Keys and values are f16, as served, but in the last two plans.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from insitu.evaluate.figures import Figures
from insitu.evaluate.models import BLOCK_SIZE, ROWS
from insitu.evaluate.run import DEFAULT_WINDOW
from insitu.evaluate.text import SAMPLE, cut, read_text
from insitu.kernels.reference import Reference
from insitu.kernels.reference_math import quantize, quantize_inputs
from insitu.models.batch import Batch
from insitu.models.kv_cache import kv_layout
from insitu.models.load import LoadedModel, load_model
from insitu.weights.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from insitu.evaluate.models import Int32
    from insitu.kernels.block_parts import Float32
    from insitu.kernels.kv_layout import KVDtype
    from insitu.kernels.pack import Segment

KINDS = {
    "qkv": ("attn_q.", "attn_k.", "attn_v.", "attn_qkv."),
    "out": ("attn_output.",),
    "gate_up": ("ffn_gate.", "ffn_up."),
    "down": ("ffn_down.",),
    "head": ("token_embd.", "output."),
}


def exact(x: Float32, _: int) -> Float32:
    """As they are."""
    return x


def scaled(x: Float32, group: int) -> Float32:
    """One scale for a group, from the largest magnitude."""
    rows = quantize(x, group)
    return _spread(rows.scale, x) * rows.q


def sided(x: Float32, group: int) -> Float32:
    """The same with a zero point where that matters to the row: what kernels do after norms."""
    rows = quantize_inputs(x, group)
    return _spread(rows.scale, x) * rows.q


def halves(x: Float32, group: int) -> Float32:
    """The same with groups half as large."""
    return scaled(x, group // 2)


def zeroed(x: Float32, group: int) -> Float32:
    """A scale and a zero point, from the least and the greatest value (0 among them)."""
    parts = x.reshape(len(x), -1, group)
    low = np.minimum(parts.min(axis=2, keepdims=True), 0)
    high = np.maximum(parts.max(axis=2, keepdims=True), 0)
    step = np.maximum((high - low) / np.float32(255), np.float32(1e-30))
    zero = np.rint(-low / step)
    q = np.clip(np.rint(parts / step) + zero, 0, 255)
    return np.asarray((q - zero) * step, np.float32).reshape(x.shape)


def two_planes(x: Float32, group: int) -> Float32:
    """Two bytes a value: what the first left, rounded by a scale of a 254th."""
    rows = quantize(x, group)
    scale = _spread(rows.scale, x)
    first = scale * rows.q
    fine = scale / np.float32(254)
    return np.asarray(first + fine * np.clip(np.rint((x - first) / fine), -127, 127), np.float32)


def _spread(scale: Float32, x: Float32) -> Float32:
    return np.maximum(np.repeat(scale, x.shape[1] // scale.shape[1], axis=1), np.float32(1e-30))


WAYS: Mapping[str, Callable[[Float32, int], Float32]] = {
    "exact": exact,
    "scale": scaled,
    "sided": sided,
    "half": halves,
    "zero": zeroed,
    "planes": two_planes,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """How each kind's inputs are rounded; ``rest``: of the kinds not named."""

    rest: str
    ways: tuple[tuple[str, str], ...] = ()
    kv_dtype: KVDtype = "f16"

    def way_of(self, name: str) -> Callable[[Float32, int], Float32]:
        """By a tensor's name."""
        for kind, way in self.ways:
            if any(part in name for part in KINDS[kind]):
                return WAYS[way]
        return WAYS[self.rest]

    def __str__(self) -> str:
        named = [f"{kind} {way}" for kind, way in self.ways]
        return f"{', '.join([*named, f'all else {self.rest}'])}; KV {self.kv_dtype}"


PLANS = (
    Plan("scale", (("qkv", "sided"), ("gate_up", "sided"), ("head", "sided"))),
    Plan("scale", (("qkv", "sided"), ("gate_up", "sided"), ("head", "planes"))),
    Plan("scale"),
    Plan("scale", (("head", "planes"),)),
    Plan("zero"),
    Plan("zero", (("head", "planes"),)),
    Plan("half", (("head", "planes"),)),
    Plan("planes"),
    Plan("exact"),
    Plan("exact", kv_dtype="f32"),
    Plan("scale", (("head", "planes"), ("qkv", "zero"))),
    Plan("scale", (("head", "planes"), ("qkv", "zero"), ("gate_up", "zero"))),
    Plan("scale", (("head", "planes"), ("gate_up", "zero"))),
    Plan("scale", (("head", "planes"), ("qkv", "planes"))),
    Plan("scale", (("head", "planes"), ("gate_up", "planes"))),
    *(Plan("scale", ((kind, "exact"),)) for kind in KINDS),
    *(Plan("scale", ((kind, "zero"),)) for kind in KINDS),
    Plan("half"),
)


class _Rounding(Reference):
    """The interpreter of float32, inputs of linears rounded as planned."""

    def __init__(self, model: LoadedModel, plan: Plan, kept: dict[int, Any]) -> None:
        super().__init__(
            model.program, kv_layout(model.spec, block_size=BLOCK_SIZE, dtype=plan.kv_dtype)
        )
        self._plan, self._kept = plan, kept

    def _segment(self, segment: Segment, forms: dict[int, Any]) -> Float32:
        x, group = next(iter(forms.values())), segment.block_type.activation_group
        rounded = self._plan.way_of(segment.name)(x, group) if group else x
        weight: Any = self._weight(segment, is_unpacked=False)
        return np.asarray(rounded @ weight.T)


def _whole(ids: Int32) -> Batch:
    """A window as one prompt, every row's logits wanted."""
    at, length = np.arange(len(ids), dtype=np.int32), len(ids)
    table = np.arange(-(-length // BLOCK_SIZE), dtype=np.int32)[None]
    return Batch(ids, at, at, table, np.array([0, length]), np.array([length]), at)


def main() -> None:
    """One line a plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, default=SAMPLE)
    parser.add_argument("--tokens", type=int, default=2600)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    source = open_source(given.model)
    windows = cut(source, read_text(given.text), window=DEFAULT_WINDOW, max_num_tokens=given.tokens)
    model, kept = load_model(source), {}
    kv = kv_layout(model.spec, block_size=BLOCK_SIZE, dtype="f32")
    truth = Reference(model.program, kv)
    truth._kept = kept
    rows = [truth.run(_whole(ids)) for ids in windows.ids]
    for plan in PLANS:
        if given.only not in str(plan):
            continue
        figures, other = Figures(), _Rounding(model, plan, kept)
        for ids, right in zip(windows.ids, rows, strict=True):
            mine = other.run(_whole(ids))
            for at in range(0, len(ids), ROWS):
                part = slice(at, at + ROWS)
                figures.take(mine[part], right[part], ids[at + 1 : at + ROWS + 1])
        report = figures.report(windows.num_tokens)
        agreed = 100 * (report.top1_agreement or 0)
        line = f"KL {report.kl_mean:.5f}, p99 {report.kl_p99:.4f}, top-1 {agreed:.2f} %"
        print(f"{line}  {plan}", flush=True)


if __name__ == "__main__":
    main()
