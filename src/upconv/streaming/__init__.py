"""Streams: ordinary and transposed convolutions whose input arrives in chunks.

    streams  one convolution: the final results after each chunk, and the input that it keeps
    layers   the checked layer of a stream, and primitives for its windows
    chains   sequences of layers with activations, and sums of branches

The concatenated results are bit-identical to one call of `Stream.engine` on the whole input.
"""

from .chains import Add, Chain, Stage, add, chain
from .streams import Stream, conv_stream, stream

__all__ = ["Add", "Chain", "Stage", "Stream", "add", "chain", "conv_stream", "stream"]


def __dir__() -> list[str]:
    return __all__
