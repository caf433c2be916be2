"""Convolutions as linear operators: as SciPy's matrices, and solved for their input.

    operators  a layer as a `LinearOperator` with its exact adjoint, and as a sparse matrix
    solving    deconvolution: the input that makes a result, by least squares

Needs the extra: pip install 'upconv[science]'.
"""

from ..errors import EngineMissing

try:
    from .operators import ConvolutionOperator, as_matrix, operator
    from .solving import Deconvolved, deconvolve
except ImportError as error:
    told = f"upconv.linear needs SciPy ({error}): pip install 'upconv[science]'"
    raise EngineMissing(told) from None

__all__ = ["ConvolutionOperator", "Deconvolved", "as_matrix", "deconvolve", "operator"]
