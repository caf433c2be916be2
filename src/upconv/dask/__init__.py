"""Transposed convolution, convolution, their gradients and networks on Dask arrays: volumes beyond
memory.

    functions  the public functions of layers, called like upconv's own
    networks   `run`: a network with the halo of all its layers
    graphs     one task per chunk of a result, with exact halos

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
