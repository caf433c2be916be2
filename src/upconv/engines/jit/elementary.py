"""More elementary functions of vectors in registers, for elementwise chains in networks.

The symbols n, r and q are those of activation.py. With t = exp(-|v|):

    exp(v) - 1       = 2^n (r + r^2 q(r)) + (2^n - 1), for v <= 0
    log(1 + exp(v))  = max(v, 0) + 2 atanh(t / (2 + t))
    sin(v)^2         = s^2, s = sin(v - n pi): the square does not depend on the sign that n gives
    sin(v), cos(v)   = s with the sign that n gives; for cos(v) 1/2 is added to n
    exp(v)           = exp(v / 2)^2, so that no power of 2 overflows or is subnormal
    gelu_tanh(v)     = v sigmoid(2 u), u = sqrt(2 / pi) (v + 0.044715 v^3)
    mish(v)          = v e (e + 2) / (e (e + 2) + 2), e = exp(v)

Largest errors in units in the last place, as measured by `tests/network/test_pointwise.py`: 8 for
gelu_tanh and mish where v > -1, and more next to 0 in the tail of negative v; 4 for all others
except sines. A sine has the error of rounding v to the element type, plus one unit. Numbers beyond
2^22 (2^51 in float64) are further apart than half a period.
"""

from __future__ import annotations

from math import factorial, pi

from ...activations import Activation
from .activation import Lanes, activated
from .emit import Function
from .values import DOUBLE, FLOAT, Value, split

_PI = {
    FLOAT: (3.140625, 0.0009675025939941406, 1.5099067240953445e-07, 5.126688136514179e-12),
    DOUBLE: (3.141592651605606, 1.9841871479187034e-09, 1.1442377452219664e-17),
}
"""Pi in parts. The first parts have few bits, so that their products with n are exact."""


def expm1_of_negative(f: Function, v: Value) -> Value:
    """Return exp(v) - 1 for v <= 0; NaN for NaN."""
    lanes = Lanes(f, v.type)
    # Below -one the result rounds to -1.
    power, rest = lanes.reduced(lanes.at_least(-2 * lanes.format.one, v), 0)
    series = lanes.polynomial(rest, lanes.format.series)
    small = f.multiply_add(rest * rest, series, rest)
    return f.multiply_add(power, small, power - 1)


def softplus(f: Function, v: Value) -> Value:
    """Return log(1 + exp(v)); NaN for NaN."""
    lanes = Lanes(f, v.type)
    form = lanes.format
    negative = lanes.magnitude(v) * -1.0
    # Where t is subnormal, 2^n may be too small for a normal number, so n is lifted.
    power, rest = lanes.reduced(lanes.at_least(form.zero, negative), form.lift)
    t = power * lanes.polynomial(rest, (1, 1, *form.series)) * 2.0**-form.lift
    s = t / (t + 2)
    terms = 8 if split(v.type)[0] == FLOAT else 17
    odd = lanes.polynomial(s * s, [1 / (2 * i + 1) for i in range(terms)])
    return f.multiply_add(s + s, odd, lanes.at_least(0, v))


def exp(f: Function, v: Value) -> Value:
    """Return exp(v); NaN for NaN."""
    lanes = Lanes(f, v.type)
    zero = lanes.format.zero
    half = lanes.at_most(-zero, lanes.at_least(zero, v)) * 0.5
    power, rest = lanes.reduced(half, 0)
    root = power * lanes.polynomial(rest, (1, 1, *lanes.format.series))
    return root * root


def gelu_tanh(f: Function, v: Value) -> Value:
    """Return v (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) / 2, gelu's tanh approximation."""
    u = f.multiply_add(v * v, f.constant(v.type, 0.044715), f.constant(v.type, 1.0)) * v
    return v * activated(f, Activation.SIGMOID, 0.0, u * (2 * (2 / pi) ** 0.5))


def mish(f: Function, v: Value) -> Value:
    """Return v tanh(log(1 + exp(v)))."""
    lanes = Lanes(f, v.type)
    e = exp(f, lanes.at_most(lanes.format.one, v))
    t = e * (e + 2)
    return v * (t / (t + 2))


def sine_squared(f: Function, v: Value) -> Value:
    """Return sin(v)^2, between 0 and 1; NaN for infinity and NaN."""
    s = _sine(f, v, 0)[0]
    return s * s


def sine(f: Function, v: Value, quarters: float) -> Value:
    """Return sin(v + pi quarters), where `quarters` is 0 or 1/2; NaN for infinity and NaN."""
    bits = Lanes(f, v.type).bits
    s, shifted = (f.convert("bitcast", number, bits) for number in _sine(f, v, quarters))
    sign = shifted << (31 if split(v.type)[0] == FLOAT else 63)
    return f.convert("bitcast", s ^ sign, v.type)


def _sine(f: Function, v: Value, quarters: float) -> tuple[Value, Value]:
    """Return a sine without its sign, and a number with the same last bit as n."""
    lanes = Lanes(f, v.type)
    element = split(v.type)[0]
    shift = f.constant(v.type, 1.5 * 2.0**lanes.format.fraction)
    turns = v * 0.3183098861837907
    if quarters:
        turns = turns + quarters
    shifted = turns + shift
    n = shifted - shift
    if quarters:
        n = n - quarters
    rest = v
    for part in _PI[element]:
        rest = f.multiply_add(n, f.constant(v.type, -part), rest)
    rest = lanes.at_most(1.5707963267948966, lanes.at_least(-1.5707963267948966, rest))
    terms = 7 if element == FLOAT else 12
    series = [(-1) ** i / factorial(2 * i + 1) for i in range(terms)]
    return rest * lanes.polynomial(rest * rest, series), shifted
