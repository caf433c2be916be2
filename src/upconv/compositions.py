"""Axes put together: what stands around a transposed convolution, as one axis of it.

In the symbols of `upconv.geometry`, for an axis with crops (p, q):

    a, b zeros put on x            p - s*a, q - s*b                               behind       (1)
    a, b positions cut off y       p + a, q + b                                   cropped      (2)
    x raised, then convolved       taps d*(k-1-u) + r, p = d*(k-1) - P - place    Raised       (3)
    x convolved, then shuffled     taps s*d*(K-1-u) + r, p = s*(d*(K-1) - P)      shuffled     (4)

In (3) x[i] stands at s*i + place + r, 0 <= r < stamp, of `length` positions, else 0: zeros between
(stamp 1) or nearest neighbours (stamp s). A convolution of stride 1 with P, Q zeros reads that at
o - P + d*u by its tap u. In (4) a convolution has s outputs per position j, of which output r is
laid at s*j + r: the way back from `upconv.subpixel`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .geometry import Axis, fitted


def cropped(axis: Axis, begin: int, end: int) -> Axis:
    """The axis whose output has lost `begin` and `end` more positions, or gained them."""
    return replace(axis, crop_begin=axis.crop_begin + begin, crop_end=axis.crop_end + end)


def behind(axis: Axis, begin: int, end: int) -> Axis | None:
    """The same outputs from the input as it was before `begin` and `end` zeros were put around it
    to make this one's; where these are negative, before so many positions were cut off it.

    None where a position that was cut may reach an output, so that no axis has the same.

    >>> behind(Axis(size=5, kernel=4, stride=2, crop_begin=3, crop_end=3), 1, 1)
    Axis(size=3, kernel=4, stride=2, dilation=1, crop_begin=1, crop_end=1)
    >>> behind(Axis(size=3, kernel=4, stride=2, crop_begin=1, crop_end=1), -1, -1) is None
    True
    """
    s = axis.stride
    axis = replace(
        axis,
        size=axis.size - begin - end,
        crop_begin=axis.crop_begin - s * begin,
        crop_end=axis.crop_end - s * end,
    )
    read = axis.reads(0, axis.out)
    if read and (read.start < -begin or read.stop > axis.size + end):
        return None
    return axis


@dataclass(frozen=True, slots=True)
class Raised:
    """An axis whose `size` inputs stand `stride` apart among `length` positions; see (3)."""

    size: int
    stride: int
    place: int
    length: int
    stamp: int

    @classmethod
    def spread(cls, axis: Axis, tap: int) -> Raised:
        """What a transposed convolution makes whose kernel is 1 at one tap, else 0.

        >>> Raised.spread(Axis(size=3, kernel=2, stride=2), tap=0)
        Raised(size=3, stride=2, place=0, length=6, stamp=1)
        """
        place = axis.dilation * tap - axis.crop_begin
        return cls(axis.size, axis.stride, place, axis.out, 1)

    @classmethod
    def repeated(cls, size: int, stride: int) -> Raised:
        """Nearest neighbours: every input `stride` times."""
        return cls(size, stride, 0, stride * size, stride)

    @classmethod
    def filled(cls, size: int, stride: int, begin: int, end: int) -> Raised:
        """stride - 1 zeros after every input, then a cut of (begin, end) positions.

        >>> Raised.filled(3, 2, 0, 1).length
        5
        """
        return cls(size, stride, -begin, stride * size - begin - end, 1)

    @property
    def whole(self) -> bool:
        """Whether all inputs are there; what is cut off would still be read by one axis."""
        last = self.place + self.stride * (self.size - 1) + self.stamp
        return self.place >= 0 and last <= self.length

    def convolved(self, kernel: int, dilation: int, begin: int, end: int) -> Axis:
        """The axis that does both, this and a convolution of stride 1; where it is whole.

        >>> Raised.repeated(3, 2).convolved(3, 1, 1, 1)
        Axis(size=3, kernel=4, stride=2, dilation=1, crop_begin=1, crop_end=1)
        """
        reach = dilation * (kernel - 1)
        taps, apart = (kernel, dilation) if self.stamp == 1 else (self.stamp + reach, 1)
        crop, out = reach - begin - self.place, self.length + begin + end - reach
        return fitted(self.size, taps, self.stride, apart, crop, out)


def shuffled(size: int, stride: int, kernel: int, dilation: int, begin: int, end: int) -> Axis:
    """The axis of a convolution of stride 1 whose phases are laid side by side; see (4).

    >>> shuffled(3, 2, 2, 1, 1, 1)
    Axis(size=3, kernel=4, stride=2, dilation=1, crop_begin=0, crop_end=0)
    """
    reach = dilation * (kernel - 1)
    taps, out = stride * (reach + 1), stride * (size + begin + end - reach)
    return fitted(size, taps, stride, 1, stride * (reach - begin), out)


def without_taps(axis: Axis, kept: range) -> Axis:
    """The same outputs by some of the taps alone, where the others are 0.

    >>> without_taps(Axis(size=3, kernel=4, stride=2), range(1, 4)).crop_begin
    -1
    """
    begin = axis.crop_begin - axis.dilation * kept.start
    return fitted(axis.size, len(kept), axis.stride, axis.dilation, begin, axis.out)
