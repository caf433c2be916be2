"""Streams: convolutions, transposed or not, whose input comes in chunks and never as a whole.

    streams  one convolution: the results that are final after each chunk, and the tail it keeps.
    layers   the checked layer of a stream, and primitives for its windows.
    chains   layers one after another, activations between them, and sums of branches.

The concatenated results have the bits of one call of `Stream.engine` on the whole input.
"""

from .chains import Add, Chain, Stage, add, chain
from .streams import Stream, conv_stream, stream

__all__ = ["Add", "Chain", "Stage", "Stream", "add", "chain", "conv_stream", "stream"]


def __dir__() -> list[str]:
    return __all__
