"""Transposed convolution, convolution, their gradients and networks on Dask arrays.

Dask arrays may be larger than memory.

    functions  the functions for layers, called like those of upconv
    networks   `run`: a network with the halo of all its layers
    overlaps   one task per chunk of a result, with exact halos

Needs Dask: `pip install '.[dask]'` in a checkout of upconv.
"""

from ..errors import EngineMissing
from ..installation import install_command

try:
    from .functions import conv, conv_backward, conv_transpose, conv_transpose_backward
    from .networks import run
except ImportError as error:
    message = f"upconv.dask needs Dask ({error}): {install_command('dask')}"
    raise EngineMissing(message) from None

__all__ = ["conv", "conv_backward", "conv_transpose", "conv_transpose_backward", "run"]


def __dir__() -> list[str]:
    return __all__
