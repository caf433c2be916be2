"""SAME and VALID without a given output size, as Keras and JAX take them over from TensorFlow.

ek = d*(k-1) + 1, full = (I-1)*s + ek; the total crop is shared out, the smaller half first, and a
negative one extends the end.
"""

from __future__ import annotations

from ..geometry import Axis, centred, scaled


def same(size: int, k: int, s: int, d: int) -> Axis:
    """O = I*s.

    >>> same(5, 3, 2, 1).crop_end
    1
    """
    return centred(size, k, s, d, scaled(size, s), upper=True)


def valid(size: int, k: int, s: int, d: int) -> Axis:
    """O = max(I*s, full): the whole result, and zeros behind it where the kernel is short.

    >>> valid(5, 1, 2, 1).out
    10
    """
    whole = Axis(size, k, s, d)
    return centred(size, k, s, d, max(scaled(size, s), whole.full), upper=True)
