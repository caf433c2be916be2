"""What stands around a transposed convolution put into its axis.

In the symbols of `upconv.geometry`, for an axis with crops (p, q):

    a, b zeros put on x            p - s*a, q - s*b      behind
    a, b positions cut off y       p + a, q + b          cropped
"""

from __future__ import annotations

from dataclasses import replace

from .geometry import Axis


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
