"""Batch normalization: forward, gradients, and folding into the previous layer.

forward, backward   the public functions
folding             a normalization folded into a convolution's weight and bias
checks              argument checks: axis, parameters, numbers, rules by name
channels            the arithmetic in NumPy
on_device           the same functions for GPU arrays
"""

from .backward import BatchNormGradients, batch_norm_backward
from .folding import FoldedWeights, fold_batch_norm
from .forward import BatchNormResult, batch_norm

__all__ = [
    "BatchNormGradients",
    "BatchNormResult",
    "FoldedWeights",
    "batch_norm",
    "batch_norm_backward",
    "fold_batch_norm",
]
