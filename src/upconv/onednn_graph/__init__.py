"""oneDNN Graph's six convolution operations as functions on arrays, on any engine.

    functions    the six functions
    operands     channels, kernel and axes from shapes and attributes; grouped weights

`upconv.dialects.onednn_graph` reads the attributes. libdnnl is not needed.
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
