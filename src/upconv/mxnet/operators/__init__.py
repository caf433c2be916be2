"""The operators: one table, which arrays, symbols and loaded models share.

row            what an operator is
convolution    Deconvolution, Convolution
normalizing    BatchNorm, LRN
pooling        Pooling
upsampling     UpSampling
layers         Activation, LeakyReLU, FullyConnected, softmax, Dropout
elementwise    arithmetic and functions element by element
shaping        Reshape, Concat, SliceChannel, Crop, slices, transpose, Pad
reducing       sum, mean, max, norm
sources        zeros, ones, full, arange in graphs
"""

from ...errors import brief
from ..base import MXNetError
from . import (  # noqa: F401
    convolution,
    elementwise,
    layers,
    normalizing,
    pooling,
    reducing,
    shaping,
    sources,
    upsampling,
)
from .row import OPERATORS, Array, Call, Operator, Shape, Shapes, unified

__all__ = ["OPERATORS", "Array", "Call", "Operator", "Shape", "Shapes", "operator", "unified"]


def operator(name: str) -> Operator:
    """The operator of this name; raises `MXNetError` where there is none."""
    if name not in OPERATORS:
        raise MXNetError(
            f"The operator {brief(name)} is not in upconv.mxnet. It has transposed convolution and "
            "what stands around it; docs/mxnet.md lists the names."
        )
    return OPERATORS[name]
