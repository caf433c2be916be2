"""Streams: ordinary and transposed convolutions whose input arrives in chunks.

    streams  one convolution: results as soon as they are final, and the inputs kept for later
    layers   a stream's checked layer, and the primitives for its windows
    chains   sequences of layers and activations, and sums of branches

The concatenated results are bit-identical to one call of `Stream.engine` on the whole input.
"""

from .chains import Add, Chain, Stage, add, chain
from .streams import Stream, conv_stream, stream

__all__ = ["Add", "Chain", "Stage", "Stream", "add", "chain", "conv_stream", "stream"]


def __dir__() -> list[str]:
    return __all__
