"""Batch normalisation: forward, gradients, and folding it into the layer before it.

forward, backward   the public functions
folding             a normalisation put into a convolution's weight and bias
checks              what a call means: axis, parameters, numbers, rules by name
channels            the arithmetic
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
