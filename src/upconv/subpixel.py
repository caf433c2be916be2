"""A transposed convolution along one axis as an ordinary convolution with s times the channels.

In the symbols of `upconv.geometry`, the taps of phase r compute output s*j + r: y[s*j + r] = sum of
x[j - e] * w[t]. The transposed convolution is therefore a convolution with s outputs per position
j, one per phase, followed by depth-to-space. Its kernel spans the shifts e of all phases. If
e_min <= e <= e_max and all shifts are a multiple of D away from e_max, it has

    K = (e_max - e_min)/D + 1 taps, D apart;  tap u of phase r is w[t] where e = e_max - u*D, else 0
    n = ceil(O/s) positions;  e_max zeros before the input, n - I - e_min after it

The phases that share a position can be chosen: cropping c < s positions at the beginning of the
shuffled result, and crop_begin - c by the convolution, moves the shifts and may save one tap. With
s = 1 this is the well-known convolution with the reversed kernel. Each axis has s*K/k times
as many multiplications as necessary. n - I depends only on s, k, d and the crops, so everything
here holds for any size.

Operations around a transposed convolution can be merged into its axis, with crops (p, q):

    a, b zeros added around x      p - s*a, q - s*b      `behind`
    a, b positions cropped from y  p + a, q + b          `cropped`

Sources: the phases of zero insertion are from Shi et al. 2016 (arXiv:1609.05158, 1609.07009); the
choice of c is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod

from .geometry import Axis, Phase

_ANY_SIZE = 1 << 24
"""A size at which no phase is empty; the results do not depend on the size."""

_FEW = 16
"""Number of cuts to try for every crop."""

NO_TAP = -1
"""Entry in a table of taps for a zero tap of the convolution."""


@dataclass(frozen=True, slots=True)
class SubPixel:
    """One axis as a convolution with `phases` outputs per position and a cropped shuffled result.

    `taps[r][u]` is the transposed convolution's tap at tap u of phase r, or `NO_TAP`. `zeros`
    (begin, end) are added around the input; negative values crop it. `cut` (begin, end) positions
    are cropped from the shuffled result.

    >>> SubPixel.of(Axis(size=5, kernel=4, stride=2, crop_begin=1, crop_end=1), cut=1)
    SubPixel(taps=((2, 0), (3, 1)), dilation=1, zeros=(1, 1), cut=(1, 1))
    """

    taps: tuple[tuple[int, ...], ...]
    dilation: int
    zeros: tuple[int, int]
    cut: tuple[int, int]

    @classmethod
    def of(cls, axis: Axis, cut: int) -> SubPixel:
        """Return the convolution whose shuffled result loses `cut` positions at its beginning."""
        begin = axis.crop_begin - cut
        unsized = replace(axis, size=_ANY_SIZE, crop_begin=begin)
        return cls._of(unsized, unsized.phases(), (cut, 0))

    @classmethod
    def of_phase(cls, axis: Axis, phase: int) -> SubPixel:
        """Return the convolution for one phase, as long as the longest; it may have no taps."""
        unsized = replace(axis, size=_ANY_SIZE)
        return cls._of(unsized, (unsized.phases()[phase],), (0, 0))

    @classmethod
    def _of(cls, axis: Axis, phases: Sequence[Phase], cut: tuple[int, int]) -> SubPixel:
        shifts = [tap.shift for phase in phases for tap in phase.taps] or [0]
        first, last = min(shifts), max(shifts)
        step = gcd(*(last - shift for shift in shifts)) or 1
        taps = [[NO_TAP] * ((last - first) // step + 1) for _ in phases]
        for row, phase in zip(taps, phases, strict=True):
            for tap in phase.taps:
                row[(last - tap.shift) // step] = tap.index
        length = -(-axis.out // axis.stride)
        beyond = axis.stride * length - axis.out
        zeros = (last, length - axis.size - first)
        return cls(tuple(map(tuple, taps)), step, zeros, (cut[0], cut[1] + beyond))

    @property
    def kernel(self) -> int:
        """Taps of the convolution."""
        return len(self.taps[0])

    @property
    def phases(self) -> int:
        """Outputs per position."""
        return len(self.taps)

    def fits(self, size: int) -> bool:
        """Return whether the convolution has outputs for an input of `size`."""
        left = size - sum(max(-zeros, 0) for zeros in self.zeros)
        return left > 0 and size + sum(self.zeros) > self.dilation * (self.kernel - 1)


def folded(axis: Axis) -> SubPixel:
    """Return the convolution whose shuffled result begins with the output."""
    return SubPixel.of(axis, 0)


@lru_cache(maxsize=256)
def thriftiest(axis: Axis) -> SubPixel:
    """Return the convolution with the fewest taps; among those, the one with the smallest cut."""
    # The span of the shifts is smallest if tap 0 begins a phase, often even without a cut. With
    # dilation, another cut may rarely bring the shifts onto a coarser grid.
    cuts = {0, axis.crop_begin % axis.stride, *range(min(axis.stride, _FEW))}
    candidates = (SubPixel.of(axis, cut) for cut in sorted(cuts))
    return min(candidates, key=lambda candidate: (candidate.kernel, candidate.cut))


def waste(axes: Sequence[Axis], forms: Sequence[SubPixel]) -> float:
    """Return how many times as many multiplications as necessary are done, over all axes."""
    pairs = zip(axes, forms, strict=True)
    return prod((form.phases * form.kernel / axis.kernel for axis, form in pairs), start=1.0)


def cropped(axis: Axis, begin: int, end: int) -> Axis:
    """Return the axis with `begin` and `end` more output positions cropped (negative: added)."""
    return replace(axis, crop_begin=axis.crop_begin + begin, crop_end=axis.crop_end + end)


def behind(axis: Axis, begin: int, end: int) -> Axis | None:
    """Return the axis with the same outputs for an input without its `begin` and `end` zeros.

    Negative numbers stand for positions that were cropped from the input. The result is None if
    such a position may reach an output.

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
