"""Numbers as people read them: three digits, a unit that fits, and words for what they mean.

Seconds, bytes, ratios ("before over after": above 1 is faster), errors. None, NaN and infinity are
said in words, never printed as they are.

What lives here: numbers into text. What never does: names, markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, isnan

from ..optimizing.results import Ratio, Timing

NOTHING = "\N{EN DASH}"
"""Stands where there is no value."""

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"

_TIMES = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_SIZES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of time that several numbers share, so that they can be compared at a glance."""

    name: str
    seconds: float

    @classmethod
    def of(cls, *seconds: float) -> Unit:
        """The unit in which the largest of these has one to three digits before its point.

        >>> Unit.of(0.0001, 0.012).name
        'ms'
        """
        largest = max((abs(value) for value in seconds if isfinite(value)), default=0.0)
        for name, unit in _TIMES:
            if largest >= 0.9995 * unit:
                return cls(name, unit)
        return cls(*_TIMES[-1]) if largest else cls("ms", 1e-3)

    def number(self, seconds: float) -> str:
        """The number alone.

        >>> Unit("ms", 1e-3).number(0.01234)
        '12.3'
        """
        return digits(seconds / self.seconds)

    def text(self, seconds: float) -> str:
        """The number and the unit."""
        return f"{self.number(seconds)} {self.name}"


def digits(value: float) -> str:
    """Three digits, no exponent where that can be.

    >>> digits(0.1834), digits(18.34), digits(1834.0), digits(1e9)
    ('0.183', '18.3', '1,834', '1.00e9')
    """
    if not isfinite(value):
        return "not a number" if isnan(value) else f"{MINUS * (value < 0)}infinite"
    size = abs(value)
    if size >= 999_999.5 or 0 < size < 0.0095:
        return scientific(value, 2)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f"{value:,.{decimals}f}"


def scientific(value: float, decimals: int = 1) -> str:
    """A number of any size, for errors.

    >>> scientific(3.21e-7), scientific(0.0)
    ('3.2e-7', '0')
    """
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else digits(value)
    mantissa, exponent = f"{value:.{decimals}e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def seconds(value: float) -> str:
    """A time in the unit that fits it.

    >>> seconds(0.0000183), seconds(0.99999)
    ('18.3 µs', '1.00 s')
    """
    return Unit.of(value).text(value)


def timing(value: Timing) -> str:
    """A median and its quartiles.

    >>> timing(Timing(0.0183, 0.0181, 0.019, 0.018, 21))
    '18.3 ms (18.1 to 19.0)'
    """
    unit = Unit.of(value.median)
    return f"{unit.text(value.median)} ({unit.number(value.low)} to {unit.number(value.high)})"


def size(value: int) -> str:
    """Bytes.

    >>> size(512), size(1536), size(5_500_000)
    ('512 B', '1.50 KiB', '5.25 MiB')
    """
    for name, unit in reversed(_SIZES):
        if abs(value) < 999.5 * unit:
            return f"{value:,} B" if abs(value) < 1024 else f"{digits(value / unit)} {name}"
    return f"{digits(value / _SIZES[0][1])} TiB"


def is_gain(ratio: Ratio) -> bool:
    """Whether it is faster by more than the noise."""
    return ratio.low > 1


def faster(ratio: Ratio) -> str:
    """A ratio and its interval in words.

    >>> faster(Ratio(1.834, 1.79, 1.88))
    '1.83 times faster (1.79 to 1.88)'
    >>> faster(Ratio(0.5, 0.4, 0.8))
    '2.00 times slower (1.25 to 2.50)'
    >>> faster(Ratio(1.01, 0.97, 1.04))
    'no difference beyond the noise (0.97 to 1.04)'
    """
    if ratio.low > 1:
        return f"{_plain(ratio.median)} times faster ({_plain(ratio.low)} to {_plain(ratio.high)})"
    if ratio.high < 1:
        worst = _plain(1 / ratio.low) if ratio.low > 0 else "more"
        best = _plain(1 / ratio.high) if ratio.high > 0 else "more"
        return f"{_slower(ratio.median)} ({best} to {worst})"
    low = max(ratio.low, 0.0)  # the spread may be wider than the ratio itself
    return f"no difference beyond the noise ({_plain(low)} to {_plain(ratio.high)})"


def gain(ratio: float) -> str:
    """A ratio whose interval is not known, in words.

    >>> gain(2.0), gain(0.8), gain(1.0)
    ('2.00 times faster', '1.25 times slower', 'the same')
    """
    if abs(ratio - 1) < 0.005:
        return "the same"
    return f"{_plain(ratio)} times faster" if not ratio < 1 else _slower(ratio)


def times(ratio: float) -> str:
    """A ratio for a column.

    >>> times(1.834)
    '1.83×'
    """
    return f"{_plain(ratio)}{TIMES}"


def percent(part: float) -> str:
    """A part of one, rounded so that little is not nothing.

    >>> percent(0.034), percent(0.0000001), percent(0.62)
    ('3%', 'under 1%', '62%')
    """
    if not isfinite(part):
        return digits(part)
    if 0 < part < 0.01:
        return "under 1%"
    return f"{part * 100:,.0f}%"


def allowed(error: float, tolerance: float) -> str:
    """How an error compares with what is allowed.

    >>> allowed(1e-7, 1e-6), allowed(0.5, 0.1), allowed(float("nan"), 0.1), allowed(0.0, 0.1)
    ('10% of the tolerance', '5.00 times the tolerance', 'not a number', 'exact')
    """
    if error == 0:
        return "exact"
    if not isfinite(error) or tolerance <= 0:
        return digits(error) if not isfinite(error) else "no difference is allowed"
    part = error / tolerance
    return (
        f"{percent(part)} of the tolerance" if part <= 1 else f"{digits(part)} times the tolerance"
    )


def signed(crop: int) -> str:
    """A crop, in words where it is none.

    >>> signed(1), signed(-2)
    ('1', '−2 (added)')
    """
    return f"{crop}" if crop >= 0 else f"{MINUS}{-crop} (added)"


def count(number: int, noun: str) -> str:
    """A number of things.

    >>> count(1, "layer"), count(3, "layer")
    ('1 layer', '3 layers')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _plain(value: float) -> str:
    return f"{value:.2f}" if isfinite(value) and abs(value) < 100 else digits(value)


def _slower(ratio: float) -> str:
    return f"{_plain(1 / ratio)} times slower" if ratio > 0 else "much slower"
