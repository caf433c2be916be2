"""oneDNN Graph's six convolution operations as functions on arrays, on any engine.

    functions    the six functions
    operands     channels, kernel and axes from shapes and attributes; grouped weights

The attributes themselves are read by `upconv.dialects.onednn_graph`. No libdnnl is needed.
"""

from __future__ import annotations

from .functions import (
    convolution,
    convolution_backward_data,
    convolution_backward_weights,
    convtranspose,
    convtranspose_backward_data,
    convtranspose_backward_weights,
)
from .operands import Attributes

__all__ = [
    "Attributes",
    "convolution",
    "convolution_backward_data",
    "convolution_backward_weights",
    "convtranspose",
    "convtranspose_backward_data",
    "convtranspose_backward_weights",
]


def __dir__() -> list[str]:
    return __all__
