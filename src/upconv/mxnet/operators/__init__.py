"""The operators: one table, shared by arrays, symbols and loaded models.

table          the table, and the class of its entries
convolution    Deconvolution, Convolution
normalizing    BatchNorm, InstanceNorm, LRN
pooling        Pooling, UpSampling
layers         Activation, LeakyReLU, FullyConnected, softmax, Dropout
elementwise    arithmetic and functions element by element
shaping        Reshape, Concat, SliceChannel, Crop, slices, transpose, Pad; zeros, ones, arange
reducing       sum, mean, max, norm
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
)
from .table import OPERATORS, Array, Call, Operator, Shape, Shapes, unified

__all__ = ["OPERATORS", "Array", "Call", "Operator", "Shape", "Shapes", "operator_named", "unified"]


def operator_named(name: str) -> Operator:
    """Return the operator of this name; raise `MXNetError` if there is none."""
    if name not in OPERATORS:
        raise MXNetError(
            f"upconv.mxnet has no operator {brief(name)}. It has transposed convolution and "
            "related layers; docs/mxnet.md lists the names."
        )
    return OPERATORS[name]
