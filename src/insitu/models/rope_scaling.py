"""The formulas that stretch rope over long contexts: a divisor for each pair of dims.

Not here: which one a file asks for (``rope``).

Always true: logarithms and powers are taken in decimal arithmetic, whose digits depend on no libm
and no processor; settings that give no number raise ArithmeticError.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

from insitu.models.spec import RopeSpec

_PI = Decimal("3.14159265358979323846264338327950288419716939937510")
_DIGITS = 40


def linear(plain: RopeSpec, factor: float) -> RopeSpec:
    """Every pair turns ``factor`` times slower."""
    divisors = (factor,) * (plain.dim // 2)
    return RopeSpec(plain.theta, plain.dim, plain.pairing, divisors, scaling=f"linear {factor:g}")


def dynamic(plain: RopeSpec, factor: float, original: int, length: int) -> RopeSpec:
    """Another theta, so that ``length`` positions turn the slowest pair as ``original`` did."""
    with localcontext(prec=_DIGITS):
        stretch = Decimal(factor) * length / original - (Decimal(factor) - 1)
        power = Decimal(plain.dim) / (plain.dim - 2)
        theta = float(Decimal(plain.theta) * (stretch.ln() * power).exp())
    scaling = f"dynamic {factor:g} for {length} positions"
    return RopeSpec(theta, plain.dim, plain.pairing, scaling=scaling)


def by_wavelength(
    plain: RopeSpec, factor: float, low: float, high: float, original: int
) -> RopeSpec:
    """Pairs that turn fewer than ``low`` times in the original length are slowed down by
    ``factor``, those that turn more than ``high`` times are not, and those between by a part."""
    with localcontext(prec=_DIGITS):
        turns = [original / wave for wave in _wavelengths(plain)]
        span = Decimal(high) - Decimal(low)
        divisors = [_blended((turn - Decimal(low)) / span, factor) for turn in turns]
    scaling = f"by wavelength, {factor:g} of {original}"
    return RopeSpec(plain.theta, plain.dim, plain.pairing, tuple(divisors), scaling=scaling)


def yarn(
    plain: RopeSpec,
    factor: float,
    ramp: tuple[float, float, int],
    magnitude: float,
    *,
    is_whole: bool,
) -> RopeSpec:
    """As by wavelength, but the part falls evenly over the pairs between the two bounds.

    ``ramp``: turns of the fast and of the slow bound, in the original length.
    """
    fast, slow, original = ramp
    with localcontext(prec=_DIGITS):
        ends = [_pair_that_turns(plain, turns, original) for turns in (fast, slow)]
        if is_whole:
            ends = [Decimal(math.floor(ends[0])), Decimal(math.ceil(ends[1]))]
        first, last = max(ends[0], Decimal(0)), min(ends[1], Decimal(plain.dim - 1))
        if first == last:
            last += Decimal("0.001")
        kept = (1 - (i - first) / (last - first) for i in range(plain.dim // 2))
        divisors = tuple(_blended(part, factor) for part in kept)
    scaling = f"yarn {factor:g} of {original}"
    return RopeSpec(plain.theta, plain.dim, plain.pairing, divisors, magnitude, scaling)


def _blended(kept: Decimal, factor: float) -> float:
    """The divisor of a pair that keeps a part of its pace, the rest slowed down by ``factor``."""
    kept = min(max(kept, Decimal(0)), Decimal(1))
    return float(1 / (kept + (1 - kept) / Decimal(factor)))


def _wavelengths(plain: RopeSpec) -> list[Decimal]:
    """Positions in which each pair turns once."""
    log_theta = Decimal(plain.theta).ln()
    return [2 * _PI * (log_theta * (2 * i) / plain.dim).exp() for i in range(plain.dim // 2)]


def _pair_that_turns(plain: RopeSpec, turns: float, length: int) -> Decimal:
    """The (broken) index of the pair that turns that often within a length."""
    ratio = length / (Decimal(turns) * 2 * _PI)
    return plain.dim * ratio.ln() / (2 * Decimal(plain.theta).ln())


def turns_in(plain: RopeSpec, length: int) -> list[float]:
    """How often each pair turns within a length."""
    with localcontext(prec=_DIGITS):
        return [float(length / wave) for wave in _wavelengths(plain)]


def yarn_magnitude(factor: float, scale: float, scale_of_all: float) -> float:
    """Of cosine and sine; two scales of the logarithm, where both are given, are divided."""

    def of(weight: float) -> Decimal:
        log = Decimal(factor).ln() if factor > 1 else Decimal(0)
        return Decimal("0.1") * Decimal(weight) * log + 1

    if scale and scale_of_all:
        return float(of(scale) / of(scale_of_all))
    return float(of(1.0))


def longrope_magnitude(factor: float, original: int) -> float:
    """Of cosine and sine, for a model stretched ``factor`` times."""
    if factor <= 1:
        return 1.0
    return float((1 + Decimal(factor).ln() / Decimal(original).ln()).sqrt())
