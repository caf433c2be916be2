"""Transposed convolution, convolution and their gradients on Dask arrays: volumes beyond memory.

    functions  the public functions, called like upconv's own
    graphs     one task per chunk of a result, with exact halos

Needs the extra: pip install 'upconv[dask]'.
"""

from ..errors import EngineMissing

try:
    from .functions import conv, conv_backward, conv_transpose, conv_transpose_backward
except ImportError as error:
    raise EngineMissing(f"upconv.dask needs Dask ({error}): pip install 'upconv[dask]'") from None

__all__ = ["conv", "conv_backward", "conv_transpose", "conv_transpose_backward"]
