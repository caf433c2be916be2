"""Streams: convolutions, transposed or not, whose input comes in chunks and never as a whole.

    streams  one convolution: what is final after each chunk, and what is kept for the next
    layers   what it computes, and primitives for windows
    chains   layers one after another, activations between them, and sums of branches

The results of all chunks together have the bits of one call on the whole, by `Stream.engine`.
"""

from .chains import Add, Chain, Stage, add, chain
from .streams import Stream, conv_stream, stream

__all__ = ["Add", "Chain", "Stage", "Stream", "add", "chain", "conv_stream", "stream"]


def __dir__() -> list[str]:
    return __all__
