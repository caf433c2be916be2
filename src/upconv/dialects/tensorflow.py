"""SAME and VALID of TensorFlow, which Keras and JAX share.

ek = d*(k-1) + 1, full = (I-1)*s + ek. The smaller half of the total crop is cut from the begin; a
negative total extends the end.
"""

from __future__ import annotations

from ..geometry import Axis, centred, scaled


def window(same: bool, size: int, k: int, s: int, d: int, extra: int | None = None) -> Axis:
    """Return one axis; `extra` is Keras' output padding.

    Without it, O = I*s with SAME. With VALID, O = max(I*s, full): the full result, followed by
    zeros if the kernel is shorter than the stride.
    """
    axis = Axis(size, k, s, d)
    if extra is None:
        out = scaled(size, s) if same else max(scaled(size, s), axis.full)
    else:
        out = axis.full + extra - (axis.extent - axis.extent % 2 if same else 0)
    return centred(size, k, s, d, out, upper=True)
