"""Activations of vectors in registers, without calls or branches, with one rounding per operation.

With n = round(v / ln 2) and r = v - n ln 2, so that |r| <= ln(2) / 2:

    exp(v)   = 2^n e, e = exp(r) = 1 + (r + r^2 q(r)), q a polynomial
    tanh     = u / (u + 2) with v's sign, u = exp(2|v|) - 1 = 2^n (r + r^2 q(r)) + (2^n - 1)
    sigmoid  = 2^n / (2^n + exp(-r)); silu = v 2^n / (2^n + exp(-r))
    gelu     = max(v, 0) - |v| T(|v|), T(a) = erfc(a / sqrt 2) / 2 = exp(-a^2 / 2) R(a),
               R a ratio of polynomials

Gelu has no cancellation in the tail of negative v. There, rounding a^2 causes an error of a^2 units
in the last place, in a result that is close to 0.

In the last three, 2^n may be too small for a normal number where the result is subnormal. So both
sides of the only division are multiplied by 2^`lift`. Only the quotient is subnormal, and it is
rounded once. Arguments are clamped to the range in which the result changes.

The coefficients are minimax fits (Remez exchange and Lawson's weights in 50 digits; after rounding
each coefficient, the others are fitted again). Largest errors in units in the last place, including
subnormal results, with fused multiply-adds / without them (SSE2 only):

                        float32        float64
    tanh              2.54 / 2.54    2.57 / 2.57
    sigmoid           2.47 / 2.47    2.10 / 2.11
    silu              2.36 / 2.39    2.15 / 1.97
    gelu, v >= -1     3.46 / 3.77    3.57 / 3.70
    gelu, v < -1      2.5 v^2        3.2 v^2        (1 + erf in NumPy: 14 at -2, 4000 at -5)

Measured against double (float32) and x87 long double (float64): every 257th float32 and 3 million
more in [-110, 20]; 3.6 million float64, uniform in [-2, 2], [-12, 12] and [-760, 45] and over all
exponents. `tests/engines/jit/test_activation.py` repeats this with fewer values.

Nanoseconds per float32 in L1 (EPYC 9005, November 2026, 2048 numbers from one array to another,
four vectors at a time) with AVX-512, AVX2 and SSE2; a copy takes 0.17, 0.18 and 0.19:

    tanh 0.30, 0.44, 1.10   sigmoid 0.27, 0.37, 0.88   silu 0.28, 0.40, 1.03   gelu 0.40, 0.63, 1.53
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...activations import Activation
from ...problem import Epilogue
from .emit import Function
from .values import DOUBLE, FLOAT, I32, I64, Value, split, vector


class ActivationEpilogue(NamedTuple):
    """The activations of a result and of a second result; see `problem.Epilogue`."""

    activation: Activation = Activation.NONE
    slope: float = 0.0
    slopes: bool = False
    second: Activation = Activation.NONE
    second_slope: float = 0.0

    @classmethod
    def of(cls, epilogue: Epilogue) -> ActivationEpilogue:
        """Return an epilogue's activations, without its residual."""
        first = epilogue.activation, epilogue.slope, epilogue.slopes
        return cls(*first, epilogue.second, epilogue.second_slope)

    @property
    def has_second(self) -> bool:
        """Whether there is a second result."""
        return self.second is not Activation.NONE

    @property
    def is_cheap(self) -> bool:
        """Whether it takes few instructions per vector and no division, so that tiles apply it."""
        return {self.activation, self.second} <= _CHEAP


NO_ACTIVATION = ActivationEpilogue()
_CHEAP = {
    Activation.NONE,
    Activation.RELU,
    Activation.LEAKY_RELU,
    Activation.RELU6,
    Activation.HARD_SWISH,
}


class _Format(NamedTuple):
    """The constants for one element type.

    `fraction` and `bias` describe its bits. 2^`lift` makes the divisor of every subnormal quotient
    normal. `ln2` is log 2 in two parts; n times the first is exact. `series` holds the coefficients
    of q, `above` and `below` those of R's numerator and denominator, all by rising powers. From
    `one` on, sigmoid(v) and tanh(v / 2) round to 1. At `zero`, silu and sigmoid round to 0; gelu
    does at -`gelu_zero`.
    """

    integer: str
    fraction: int
    bias: int
    lift: int
    one: float
    zero: float
    gelu_zero: float
    ln2: tuple[float, float]
    series: tuple[float, ...]
    above: tuple[float, ...]
    below: tuple[float, ...]


_FORMATS = {
    FLOAT: _Format(
        integer=I32, fraction=23, bias=127, lift=32, one=20.0, zero=-110.0, gelu_zero=14.5,
        ln2=(0.693145751953125, 1.428606765330187e-06),
        series=(0.4999999701976776, 0.1666654348373413, 0.04166754335165024, 0.008366553112864494,
                0.001386083080433309),
        above=(0.5, 0.4382338523864746, 0.18318745493888855, 0.04061650484800339,
               0.0041136424988508224),
        below=(1.0, 1.6743526458740234, 1.20231032371521, 0.46934428811073303,
               0.10181692242622375, 0.010311253368854523),
    ),
    DOUBLE: _Format(
        integer=I64, fraction=52, bias=1023, lift=64, one=40.0, zero=-753.0, gelu_zero=38.7,
        ln2=(0.6931471805601177, -1.7239444525614835e-13),
        series=(0.5000000000000006, 0.16666666666666588, 0.041666666666575994,
                0.008333333333389781, 0.0013888888931830295, 0.00019841269718774539,
                2.480150493757039e-05, 2.755740743613962e-06, 2.762617769103906e-07,
                2.505392594277629e-08),
        above=(0.5, 0.8282850520862839, 0.6801083697719333, 0.3576850466313411,
               0.13219026997400277, 0.035708524997860924, 0.007130564899935741,
               0.0010406146712930223, 0.00010661884316970075, 6.9736601585897996e-06,
               2.2380744089783118e-07),
        below=(1.0, 2.454454664975433, 2.8185882219183305, 2.003012306572085, 0.9810495176251509,
               0.34869663964990677, 0.09208147208141432, 0.018139807387007576,
               0.0026259145319678682, 0.0002678148089543591, 1.7480373731213625e-05,
               5.610020594272064e-07),
    ),
}  # fmt: skip
_LOG2_E = 1.4426950408889634


def second_of(f: Function, epilogue: ActivationEpilogue, value: Value) -> Value:
    """Compute the second result from the first."""
    return activated(f, epilogue.second, epilogue.second_slope, value)


def activated(f: Function, activation: Activation, slope: float | Value, value: Value) -> Value:
    """Apply an activation to every lane of `value`: a float, a double, or a vector of either.

    Special values are treated as in `upconv.activations.apply`: NaN stays NaN, infinities give the
    limits. `slope` is LEAKY_RELU's factor for negative values, one for all lanes or one per lane.
    """
    if activation is Activation.NONE:
        return value
    if activation is Activation.RELU:
        return f.select(f.compare("ole", value, 0), 0, value)  # so that -0 becomes 0
    if activation is Activation.LEAKY_RELU:
        return f.select(f.compare("olt", value, 0), value * slope, value)
    return _EMITTERS[activation](Lanes(f, value.type), value)


def _tanh(lanes: Lanes, v: Value) -> Value:
    magnitude = lanes.magnitude(v)
    doubled = lanes.at_most(lanes.format.one, magnitude + magnitude)
    power, rest = lanes.reduced(doubled, 0)
    series = lanes.polynomial(rest, lanes.format.series)
    small = lanes.f.multiply_add(rest * rest, series, rest)
    u = lanes.f.multiply_add(power, small, power - 1)
    return lanes.f.intrinsic("llvm.copysign", u / (u + 2), v)


def _sigmoid(lanes: Lanes, v: Value) -> Value:
    power, denominator = _odds(lanes, _clamped(lanes, v))
    return power / denominator


def _silu(lanes: Lanes, v: Value) -> Value:
    clamped = _clamped(lanes, v)
    power, denominator = _odds(lanes, clamped)
    result = clamped * power / denominator
    # Beyond `one`, sigmoid is 1, so the result is v, not its clamped value.
    return lanes.f.select(lanes.f.compare("ogt", v, lanes.format.one), v, result)


def _clamped(lanes: Lanes, v: Value) -> Value:
    return lanes.at_most(lanes.format.one, lanes.at_least(lanes.format.zero, v))


def _odds(lanes: Lanes, v: Value) -> tuple[Value, Value]:
    """Return 2^n and 2^n + exp(-r), both lifted; their quotient is the sigmoid."""
    form = lanes.format
    power, rest = lanes.reduced(v, form.lift)
    backwards = [c * (-1) ** i * 2.0**form.lift for i, c in enumerate((1, 1, *form.series))]
    return power, power + lanes.polynomial(rest, backwards)


def _gelu(lanes: Lanes, v: Value) -> Value:
    form = lanes.format
    a = lanes.at_most(form.gelu_zero, lanes.magnitude(v))
    power, rest = lanes.reduced(a * -0.5 * a, form.lift)
    # a * power comes first: it is normal even where a is subnormal or power is nearly too small.
    scaled = a * power * lanes.polynomial(rest, (1, 1, *form.series))
    below = lanes.polynomial(a, [c * 2.0**form.lift for c in form.below])
    tail = scaled * lanes.polynomial(a, form.above) / below
    return lanes.at_least(0, v) - tail


def _relu6(lanes: Lanes, v: Value) -> Value:
    return lanes.at_most(6, activated(lanes.f, Activation.RELU, 0, v))


def _hard_swish(lanes: Lanes, v: Value) -> Value:
    share = lanes.at_most(6, v + 3) * (1 / 6)
    return lanes.f.select(lanes.f.compare("ole", v, -3), 0, v * share)


_EMITTERS = {
    Activation.TANH: _tanh,
    Activation.SIGMOID: _sigmoid,
    Activation.SILU: _silu,
    Activation.GELU: _gelu,
    Activation.RELU6: _relu6,
    Activation.HARD_SWISH: _hard_swish,
}


class Lanes:
    """Operations that the activations share, for values of one type."""

    def __init__(self, f: Function, kind: str) -> None:
        element, lanes = split(kind)
        self.f, self.kind, self.format = f, kind, _FORMATS[element]
        self.bits = vector(self.format.integer, lanes) if lanes else self.format.integer

    def polynomial(self, x: Value, coefficients: Sequence[float]) -> Value:
        """Evaluate a polynomial by Horner's rule; coefficients are by rising powers."""
        total = self.f.constant(self.kind, coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.f.multiply_add(total, x, self.f.constant(self.kind, coefficient))
        return total

    def at_most(self, limit: float, v: Value) -> Value:
        """Return the smaller one, or NaN for NaN; in this order, it is one x86 instruction."""
        bound = self.f.constant(self.kind, limit)
        return self.f.select(self.f.compare("olt", bound, v), bound, v)

    def at_least(self, limit: float, v: Value) -> Value:
        """Return the larger one, or NaN for NaN; with a limit of 0, -0 stays -0."""
        bound = self.f.constant(self.kind, limit)
        return self.f.select(self.f.compare("ogt", bound, v), bound, v)

    def magnitude(self, v: Value) -> Value:
        """Return |v|."""
        return self.f.intrinsic("llvm.fabs", v)

    def reduced(self, v: Value, lift: int) -> tuple[Value, Value]:
        """Return 2^(n + lift) and r = v - n ln 2, where n is the integer nearest to v / ln 2.

        Adding 1.5 * 2^fraction rounds to an integer and leaves it in the lowest bits. The sum also
        adds the exponent bias, so a shift turns these bits into the power. Converting NaN to an
        integer would be undefined; here NaN gives an arbitrary power, and r is NaN.
        """
        f, form = self.f, self.format
        shift = f.constant(self.kind, 1.5 * 2.0**form.fraction + form.bias + lift)
        shifted = f.multiply_add(v, f.constant(self.kind, _LOG2_E), shift)
        n = shifted - shift
        high, low = (f.constant(self.kind, -part) for part in form.ln2)
        rest = f.multiply_add(n, low, f.multiply_add(n, high, v))
        bits = f.convert("bitcast", shifted, self.bits) << form.fraction
        return f.convert("bitcast", bits, self.kind), rest
