"""An ordinary or transposed convolution along one axis, whose input arrives in chunks.

A stream keeps the latest inputs, from `first` on, as its *tail*. It appends each chunk to the tail
and computes the results that have become final as one problem on that window.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from .. import memory
from ..arrays import Array, as_array, same_dtype
from ..errors import ArgumentError
from ..keywords import Keywords
from ..signatures import Layout, Padding, Sizes, WeightOrder
from ..stream_bytes import Stateful, by_one_thread
from ..stream_progress import Progress
from .layer_primitives import FixedOrder, Layer, layer_of, require_fit


def stream(
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
    activation: Any = None,
    dtype: Any = None,
    threads: int | None = None,
    length: int = 4096,
) -> Stream:
    """Stream `conv_transpose` along one axis: call `push(chunk)` for each chunk, then `finish()`.

    weight, bias and the keywords up to `activation`: as in `conv_transpose`, for one spatial axis.
    dtype: the dtype of chunks, to which weight and bias are converted (default: the weight's).
    threads: number of threads of this stream (default: the current `get_num_threads()`).
    length: the number of inputs in the whole call whose bits are to be reproduced. Only its
        magnitude matters: calls use one kernel for long inputs and another for short ones.

    The concatenated results equal `conv_transpose(x, ..., engine=stream.engine)` bit for bit, for
    all chunk sizes. Only the sign of a zero may differ, if a bias is -0.0 or a sum underflows.

    Layers that the JIT engine refuses, and weights that are not finite, run slowly in NumPy.

    Raises the same errors as `conv_transpose`.

    >>> import numpy as np
    >>> double = stream(np.ones((1, 1, 3), np.float32), stride=2, padding=1)
    >>> double.push(np.array([[[1, 2]]], np.float32)), double.push(np.array([[[3]]], np.float32))
    (array([[[1., 3., 2.]]], dtype=float32), array([[[5., 3.]]], dtype=float32))
    >>> double.finish(), double.latency
    (array([], shape=(1, 1, 0), dtype=float32), 1)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, None, layout, weight_layout
    )
    return Stream(layer_of(keywords, weight, bias, activation, dtype, threads, length, False))


def conv_stream(
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "OIX",
    activation: Any = None,
    dtype: Any = None,
    threads: int | None = None,
    length: int = 4096,
) -> Stream:
    """Stream `conv` along one axis; see `stream`. "same" padding requires stride 1.

    For a causal convolution, pass `padding=((dilation*(kernel-1), 0),)`.

    >>> import numpy as np
    >>> sums = conv_stream(np.ones((1, 1, 3)), padding=((2, 0),))
    >>> sums.push(np.array([[[1.0, 2.0]]])), sums.push(np.array([[[3.0, 4.0]]])), sums.lookahead
    (array([[[1., 3.]]]), array([[[6., 9.]]]), 0)
    """
    keywords = Keywords.of(stride, padding, 0, dilation, groups, None, layout, weight_layout)
    return Stream(layer_of(keywords, weight, bias, activation, dtype, threads, length, True))


class Stream(Stateful):
    """A convolution in progress, made by `upconv.stream` or `upconv.conv_stream`.

    Only one thread at a time may call a stream's methods. Copies share the weights, but are
    independent streams that may run in other threads.

    >>> import numpy as np, upconv
    >>> one = upconv.stream(np.ones((1, 1, 2), np.float32), stride=1)
    >>> one.push(np.array([[1, 2]], np.float32))  # (C, chunk): without a batch
    array([[1., 3.]], dtype=float32)
    >>> other = one.copy()
    >>> one.finish(), other.push(np.array([[5]], np.float32))
    (array([[2.]], dtype=float32), array([[7.]], dtype=float32))
    """

    __slots__ = ("_batched", "_ended", "_tail", "_taken", "kind", "layer")

    def __init__(self, layer: Layer) -> None:
        """Create a stream without inputs; call `upconv.stream` instead."""
        self.layer, self.kind = layer, (layer.axis, layer.dtype)
        self._tail: Array | None = None  # (N, C, kept), once the first chunk determines N
        self._batched, self._ended, self._taken = True, False, 0

    @property
    def engine(self) -> FixedOrder:
        """The `engine=` argument for a whole call with the same bits."""
        return self.layer.engine

    @property
    def progress(self) -> Progress:
        """The axis, which determines the number of final results."""
        return self.layer.progress

    @property
    def taken(self) -> int:
        """Number of inputs so far."""
        return self._taken

    @by_one_thread
    @memory.bounded("this chunk")
    def push(self, chunk: Any) -> Array:
        """Return all new results that no later input can change.

        chunk: (N, C, n), or (C, n) without a batch, in the stream's layout and dtype. n and N may
        be 0; N must stay the same as in the first chunk. The caller may reuse the array afterwards.

        Returns (N, F, m), which may be empty. Raises `ShapeError` or `DTypeError`, or `EngineError`
        after `finish`; an error leaves the stream unchanged.
        """
        x, batched = self._checked(chunk)
        layer, taken, tail = self.layer, self._taken, self._tail
        progress, axis = layer.progress, layer.axis
        result = 0 if tail is None else progress.final(taken)
        taken += x.shape[axis]
        if tail is not None and tail.shape[axis]:
            x = np.concatenate((tail, x), axis)
        first = taken - x.shape[axis]
        y = layer.run(x, progress.shift(first, result), progress.final(taken) - result)
        drop = progress.first(taken) - first
        self._tail = (x[..., drop:] if layer.first else x[:, drop:]).copy()
        self._taken, self._batched = taken, batched
        return y if batched else y[0]

    @by_one_thread
    @memory.bounded("the rest of the stream")
    def finish(self) -> Array:
        """Return the remaining results and end the stream; `reset` starts again.

        Raises `ShapeError` if there are too few inputs for the whole call, and `ArgumentError` if
        there was no chunk at all, not even an empty one, since the batch is then unknown.
        """
        self._require_open()
        if self._tail is None:
            shape = self.layer.problem.layout.shape(0, self.layer.channels, (0,))
            expected = "at least one chunk, which determines the batch"
            remedy = f"An empty chunk of shape {shape} suffices."
            raise ArgumentError("the stream", "empty", expected, remedy)
        progress, taken = self.layer.progress, self._taken
        total, result = progress.total(taken), progress.final(taken)
        first = taken - self._tail.shape[self.layer.axis]
        y = self.layer.run(self._tail, progress.shift(first, result), total - result)
        self._ended = True
        return y if self._batched else y[0]

    @by_one_thread
    def reset(self) -> None:
        """Start again from the beginning; prepared primitives are kept."""
        self._tail, self._taken, self._ended, self._batched = None, 0, False, True

    def _digest(self) -> bytes:
        return self.layer.digest()

    def _state(self) -> list[Any]:
        return [self._tail, self._taken, self._ended, self._batched]

    def _with(self, state: list[Any]) -> Self:
        other = type(self)(self.layer)
        other._tail, other._taken, other._ended, other._batched = state
        return other

    def _checked(self, chunk: Any) -> tuple[Array, bool]:
        """Check a chunk; return it with a batch axis, and whether it already had one."""
        self._require_open()
        x, layer, batch = as_array("chunk", chunk), self.layer, None
        if x.dtype != layer.dtype:
            same_dtype("the stream", layer.dtype, "chunk", x.dtype)
        if self._tail is not None:
            batch = [len(self._tail)] if self._batched else []
        require_fit(x, batch, layer.channels, layer.axis)
        return (x, True) if x.ndim == 3 else (x[None], False)
