"""Shape rules: what each operator accepts, and how wide its output is.

Not here: recording (``program``) or arithmetic (``reference``). A rule sees names, rows, widths and
types, nothing else, and answers the width of the output.

Always true: a Program that was recorded holds no operator that breaks a rule.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

PAIRINGS = ("adjacent", "halves")
ACTIVATIONS = ("silu", "gelu")  # gelu: its tanh form
MAX_EXPERTS = 1024
# Attention kernels run 16 lanes over a head; see kv_layout.
HEAD_DIM_MULTIPLE = 16
# Below it 1 / soft_cap might overflow.
SMALLEST_SOFT_CAP = 1e-30


class ShapeError(ValueError):
    """An operator was recorded over tensors it cannot take."""


class Shaped(Protocol):
    """A tensor as the rules see it."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def rows(self) -> str:
        """What it has one row of."""
        ...

    @property
    def width(self) -> int:
        """Elements a row."""
        ...

    @property
    def dtype(self) -> str:
        """Element type."""
        ...


class Matrix(Protocol):
    """A linear's weight as the rules see it: n outputs over k inputs."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def n(self) -> int:
        """Outputs."""
        ...

    @property
    def k(self) -> int:
        """Inputs."""
        ...


def _require(kind: str, tensors: Sequence[Shaped], holds: bool, wanted: str) -> None:
    if not holds:
        got = ", ".join(f"{t.name} [{t.rows}, {t.width}] {t.dtype}" for t in tensors)
        raise ShapeError(f"{kind}({got}): {wanted}")


def _require_floats(kind: str, *tensors: Shaped) -> None:
    floats = all(t.dtype == "f32" for t in tensors)
    _require(kind, tensors, floats, "needs float tensors")
    same = len({t.rows for t in tensors}) == 1
    _require(kind, tensors, same, "needs tensors with the same rows")


def _require_column(kind: str, tensor: Shaped) -> None:
    holds = tensor.dtype == "i32" and tensor.width == 1
    _require(kind, [tensor], holds, "needs one int32 a row")


def embed(weight: Matrix, token_ids: Shaped) -> int:
    """[T] ids to [T, k]."""
    _require_column("embed", token_ids)
    return weight.k


def rms_norm(x: Shaped, weight_length: int, eps: float) -> int:
    """[T, width] to the same, in whole parts of the weight's length."""
    holds = weight_length > 0 and x.width % weight_length == 0
    return _norm("rms_norm", x, holds, f"weight has {weight_length} elements", eps)


def layer_norm(x: Shaped, weight_length: int, bias_length: int, eps: float) -> int:
    """[T, width] to the same."""
    holds = x.width == weight_length == bias_length
    return _norm("layer_norm", x, holds, f"weight has {weight_length} elements", eps)


def _norm(kind: str, x: Shaped, fits: bool, wanted: str, eps: float) -> int:
    _require_floats(kind, x)
    _require(kind, [x], fits, wanted)
    _require(kind, [x], math.isfinite(eps) and eps > 0, f"eps {eps} is not above 0")
    return x.width


def linear(x: Shaped, weight: Matrix, residual: Shaped | None) -> int:
    """[T, k] to [T, n]; a residual is [T, n]."""
    tensors = [x] if residual is None else [x, residual]
    kind = f"linear {weight.name}"
    _require_floats(kind, *tensors)
    _require(kind, tensors, x.width == weight.k, f"weight is [{weight.n}, {weight.k}]")
    if residual is not None:
        _require(kind, tensors, residual.width == weight.n, f"weight is [{weight.n}, {weight.k}]")
    return weight.n


def split(x: Shaped, sizes: Sequence[int]) -> None:
    """[T, sum(sizes)] to a view for each size."""
    holds = all(size > 0 for size in sizes) and sum(sizes) == x.width
    _require("split", [x], holds, f"sizes {tuple(sizes)} do not add up to the width")


def rope_angles(
    positions: Shaped, dim: int, theta: float, divisors: Sequence[float], magnitude: float
) -> int:
    """[T] positions to [T, dim]: cosines, then sines."""
    _require_column("rope_angles", positions)
    _require("rope_angles", [positions], dim > 0 and dim % 2 == 0, f"dim {dim} is not even")
    _require("rope_angles", [positions], len(divisors) in (0, dim // 2), "needs a divisor a pair")
    holds = all(math.isfinite(x) and x > 0 for x in (theta, magnitude, *divisors))
    wanted = f"theta {theta}, magnitude {magnitude} and divisors must be above 0"
    _require("rope_angles", [positions], holds, wanted)
    return dim


def rope(x: Shaped, angles: Shaped, num_heads: int, head_dim: int, pairing: str) -> None:
    """[T, num_heads * head_dim] rotated in place by angles [T, dim], dim <= head_dim."""
    tensors = [x, angles]
    _require_floats("rope", *tensors)
    _require("rope", tensors, x.width == num_heads * head_dim, f"{num_heads} heads of {head_dim}")
    _require("rope", tensors, angles.width <= head_dim, f"rotates more than head_dim {head_dim}")
    _require("rope", tensors, pairing in PAIRINGS, f"pairing {pairing!r} is not one of {PAIRINGS}")


def attention(  # noqa: PLR0913
    q: Shaped,
    k: Shaped,
    v: Shaped,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window: int = 0,
    soft_cap: float = 0.0,
) -> int:
    """q [T, num_heads * head_dim], k and v [T, num_kv_heads * head_dim] to the shape of q."""
    tensors = [q, k, v]
    _require_floats("attention", *tensors)
    _require("attention", tensors, q.rows == "tokens", "needs one row a token")
    holds = head_dim > 0 and head_dim % HEAD_DIM_MULTIPLE == 0
    _require("attention", tensors, holds, f"head_dim {head_dim} is not a multiple of 16")
    holds = num_kv_heads > 0 and num_heads > 0 and num_heads % num_kv_heads == 0
    _require("attention", tensors, holds, f"{num_heads} heads over {num_kv_heads} KV heads")
    _require("attention", tensors, q.width == num_heads * head_dim, f"{num_heads} x {head_dim}")
    width = num_kv_heads * head_dim
    _require("attention", tensors, k.width == v.width == width, f"KV: {num_kv_heads} x {head_dim}")
    _require("attention", tensors, 0 <= window < 2**31, f"window {window} is not 0 or more")
    holds = soft_cap == 0 or _is_soft_cap(soft_cap)
    _require("attention", tensors, holds, f"soft_cap {soft_cap} is neither 0 nor a plain number")
    return q.width


def _is_soft_cap(value: float) -> bool:
    return math.isfinite(value) and SMALLEST_SOFT_CAP <= value <= 1e30


def gated(x: Shaped, activation: str) -> int:
    """[T, 2 * f], gate columns then up columns, to [T, f]."""
    _require_floats("gated", x)
    _require("gated", [x], x.width % 2 == 0, "needs an even width")
    _require("gated", [x], activation in ACTIVATIONS, f"activation {activation!r} is not known")
    return x.width // 2


def activate(x: Shaped, activation: str) -> int:
    """[T, width] to the same."""
    _require_floats("activate", x)
    _require("activate", [x], activation in ACTIVATIONS, f"activation {activation!r} is not known")
    return x.width


def scale(x: Shaped, factor: float) -> int:
    """[T, width] to the same."""
    _require_floats("scale", x)
    _require("scale", [x], math.isfinite(factor), f"factor {factor} is not finite")
    return x.width


def soft_cap(x: Shaped, cap: float) -> int:
    """[T, width] to the same."""
    _require_floats("soft_cap", x)
    _require("soft_cap", [x], _is_soft_cap(cap), f"cap {cap} is not a plain number above 0")
    return x.width


def gate_rows(x: Shaped, gate: Shaped) -> int:
    """[T, width] and one gate a row to [T, width]."""
    _require_floats("gate_rows", x, gate)
    _require("gate_rows", [x, gate], gate.width == 1, "needs one gate a row")
    return x.width


def route(logits: Shaped, num_active: int) -> int:
    """[T, num_experts] to the same."""
    _require_floats("route", logits)
    holds = 1 <= num_active <= logits.width <= MAX_EXPERTS
    _require("route", [logits], holds, f"{num_active} active of at most {MAX_EXPERTS} experts")
    return logits.width


def experts(
    x: Shaped, routing: Shaped, gate_up: Sequence[Matrix], down: Sequence[Matrix], activation: str
) -> int:
    """x [T, k] and a weight an expert [T, num_experts] to [T, n of every down]."""
    tensors = [x, routing]
    _require_floats("experts", *tensors)
    fits = len(gate_up) == len(down) == routing.width
    _require("experts", tensors, fits, f"has weights of {len(gate_up)} experts")
    inner, width = down[0].k, down[0].n
    alike = all((up.n, up.k) == (2 * inner, x.width) for up in gate_up)
    alike = alike and all((w.n, w.k) == (width, inner) for w in down)
    _require("experts", tensors, alike, f"experts differ, or are not {x.width} wide")
    _require("experts", tensors, activation in ACTIVATIONS, f"{activation!r} is not known")
    return width


def add(a: Shaped, b: Shaped) -> int:
    """Two tensors of one shape to the same."""
    _require_floats("add", a, b)
    _require("add", [a, b], a.width == b.width, "needs one shape")
    return a.width


def take(x: Shaped, wanted: Shaped) -> int:
    """[T, width] and row indices to [R, width]."""
    _require_floats("take", x)
    _require_column("take", wanted)
    holds = x.rows == "tokens" != wanted.rows
    _require("take", [x, wanted], holds, "takes rows of tokens by rows that are wanted")
    return x.width


def quantize_rows(x: Shaped, group: int) -> int:
    """[T, width] to the same, quantised with one scale per ``group``."""
    _require_floats("quantize_rows", x)
    _require("quantize_rows", [x], x.width % group == 0, f"width is not a multiple of {group}")
    return x.width
