"""Convolutions as linear operators: SciPy operators and matrices, and deconvolution.

    operators  a layer as a `LinearOperator` with its exact adjoint, and as a sparse matrix
    solving    deconvolution: the input that produces a result, by least squares

Needs SciPy: `pip install '.[science]'` in a checkout of upconv.
"""

from ..errors import EngineMissing
from ..installation import install_command

try:
    from .operators import ConvolutionOperator, as_matrix, operator
    from .solving import Deconvolved, deconvolve
except ImportError as error:
    message = f"upconv.linear needs SciPy ({error}): {install_command('science')}"
    raise EngineMissing(message) from None

__all__ = ["ConvolutionOperator", "Deconvolved", "as_matrix", "deconvolve", "operator"]


def __dir__() -> list[str]:
    return __all__
