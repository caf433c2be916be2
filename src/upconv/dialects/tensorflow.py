"""TensorFlow's SAME and VALID, as Keras and JAX take them over.

ek = d*(k-1) + 1, full = (I-1)*s + ek; the total crop is shared out, the smaller half first, and a
negative one extends the end.
"""

from __future__ import annotations

from ..geometry import Axis, centred, scaled


def window(same: bool, size: int, k: int, s: int, d: int, extra: int | None = None) -> Axis:
    """One axis; `extra` is Keras' output padding.

    Without it O = I*s with SAME, and with VALID max(I*s, full): the whole result, and zeros behind
    it where the kernel is short.
    """
    whole = Axis(size, k, s, d)
    if extra is None:
        out = scaled(size, s) if same else max(scaled(size, s), whole.full)
    else:
        out = whole.full + extra - (whole.extent - whole.extent % 2 if same else 0)
    return centred(size, k, s, d, out, upper=True)
