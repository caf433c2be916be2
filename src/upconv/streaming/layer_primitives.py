"""The layer of a stream: one checked convolution along one axis, and primitives for its windows.

Windows of equal geometry share a primitive and its packed weight. If the chunk size is constant,
only one or two geometries remain soon. The engine's summation order does not depend on the size.
"""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np

from .. import memory, shape_checks
from ..activations import Activation
from ..argument_checks import frozen, one_of
from ..arrays import Array, Operand, as_array, converted, copied, described
from ..engines.nonfinite import is_finite
from ..engines.ordered_sums import ORDERED, InvariantEngine, OrderedEngine, invariant_engine
from ..errors import ArgumentError, ShapeError
from ..execution import PackedCall, Packings, PreparedCall
from ..geometry import Axis
from ..keywords import Keywords, Same, frozen_activation, integers, paddings, paddings_of_stride_1
from ..network.graph import Chain, Convolution, Op
from ..problem import DataLayout, Epilogue, Problem, WeightLayout
from ..shape_checks import Signature
from ..stream_progress import Progress
from ..threads import resolved

FixedOrder = InvariantEngine | OrderedEngine
"""An engine whose summation order is the same at every size."""

_FAR = 1 << 40  # larger than any crop in use
_KEPT_BYTES = 64 << 20  # of packed weights for windows of different sizes
_MIN_WINDOWS, _MAX_WINDOWS = 4, 32
_FEW_TAPS = 32


@memory.bounded("the layer of this stream")
def layer_of(
    keywords: Keywords,
    weight: Any,
    bias: Any,
    activation: Any,
    dtype: Any,
    threads: int | None,
    length: int,
    convolves: bool,
) -> Layer:
    """Check a stream's arguments and return its layer."""
    weight = converted("weight", as_array("weight", weight), dtype)
    bias = None if bias is None else converted("bias", as_array("bias", bias), dtype)
    if weight.ndim != 3:
        remedy = "A stream has one spatial axis; call conv_transpose for layers with more."
        expected = "3 axes: two of channels and a kernel"
        raise ShapeError("weight.shape", str(weight.shape), expected, remedy)
    call = shape_checks.convolution if convolves else shape_checks.transposed
    x = Operand(_shape_of(keywords, weight.shape, convolves), weight.dtype)
    signature = call(
        x, described(weight), described(bias), None, keywords, frozen_activation(activation)
    )
    problem, number = signature.problem, integers("length", frozen("length", length), 1, 1)[0]
    progress = _progress(problem.axes[0], keywords, convolves)
    size = max(number, progress.takes(1), 1)
    if progress.kernel > _FEW_TAPS:  # which engine is chosen depends on the taps in use
        size = max(size, 4 * progress.extent)
    nominal = problem.replace(axes=(progress.window(size, progress.begin, progress.total(size)),))
    engine: FixedOrder = invariant_engine(nominal)
    if engine.refuses(nominal) is not None or not is_finite(weight):
        engine = ORDERED  # the reference engine's sums depend on the size
    count = resolved(threads)
    weight = copied("the stream's weight", weight)
    bias = None if bias is None else copied("the stream's bias", bias)
    return Layer(problem, progress, engine, count, weight, bias)


def _shape_of(keywords: Keywords, weight: tuple[int, ...], convolves: bool) -> tuple[int, ...]:
    """Return the shape of a long input that fits the weight's channels."""
    layout = one_of("layout", keywords.layout, DataLayout)
    axis = one_of("weight_layout", keywords.weight_layout, WeightLayout).to_iox(1)[0]
    groups = keywords.groups if convolves and isinstance(keywords.groups, int) else 1
    return layout.shape(1, max(1, weight[axis] * groups), (_FAR,))


def _progress(axis: Axis, keywords: Keywords, convolves: bool) -> Progress:
    """Return the axis without a size; refuse padding that depends on the size."""
    begin, end = axis.crop_begin, axis.crop_end
    if convolves:
        padding = keywords.padding
        if axis.stride > 1 and isinstance(paddings(padding, 1), Same):
            remedy = "Write the zeros as ((begin, end),)."
            expected = "numbers for a stride above 1: 'same' depends on the whole input's size"
            raise ArgumentError("padding", repr(padding), expected, remedy)
        begin, end = paddings_of_stride_1(padding, [axis.kernel], [axis.dilation])[0]
    return Progress(axis.kernel, axis.stride, axis.dilation, begin, end, convolves)


def require_fit(chunk: Array, batch: list[int] | None, channels: int | None, axis: int) -> None:
    """Raise `ShapeError` unless a chunk's shape is valid for streaming along an axis, -1 or -2.

    batch: [N], or [] without a batch axis; None before the first chunk. channels: None for any.
    """
    fits = chunk.ndim in (2, 3) and batch in (None, [*chunk.shape[:-2]])
    if not fits or channels not in (None, chunk.shape[-3 - axis]):
        sizes = [str("C" if channels is None else channels), "n"]
        before = ["N"] if batch is None else map(str, batch)
        expected = ", ".join([*before, *(sizes if axis == -1 else sizes[::-1])])
        remedy = "Batch and channels must stay the same as in the first chunk."
        raise ShapeError("chunk.shape", str(chunk.shape), f"({expected})", remedy)


def chain_of(epilogue: Epilogue) -> Chain:
    """Convert an activation to network operations."""
    kind = epilogue.activation
    if kind is Activation.NONE:
        return ()
    return (Op(kind.value, epilogue.slope if kind is Activation.LEAKY_RELU else None),)


class Layer:
    """The state that a stream and its copies share: the problem, the weight, the primitives for
    windows."""

    def __init__(
        self,
        problem: Problem,
        progress: Progress,
        engine: FixedOrder,
        threads: int,
        weight: Array,
        bias: Array | None,
    ) -> None:
        self.problem, self.progress, self.engine = problem, progress, engine
        self.dtype = weight.dtype
        self.first = problem.layout is DataLayout.NCX  # channels come first
        self.axis = -1 if self.first else -2
        self.channels = problem.out_channels if progress.convolves else problem.in_channels
        self.threads, self._weight, self._bias = threads, weight, bias
        self._limit = min(max(_KEPT_BYTES // max(1, weight.nbytes), _MIN_WINDOWS), _MAX_WINDOWS)
        self._bytes = problem.result_channels * weight.itemsize  # per result and batch element
        self._windows: dict[tuple[int, ...], PackedCall] = {}
        self._packings = Packings()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.problem, self.progress, self.engine, self.threads, self._weight, self._bias
        return Layer, arguments

    def run(self, x: Array, shift: int, results: int) -> Array:
        """Compute the results of one window; x has a batch axis."""
        memory.require(results * len(x) * self._bytes, "the result of this chunk")
        key = (x.shape[0], x.shape[self.axis], shift, results)
        window = self._windows.get(key) or self._window(key)
        try:
            out = np.empty(window.signature.shape, self.dtype)
        except MemoryError as error:
            raise memory.refused("the result of this chunk", error) from None
        if out.size:
            window.run(out, x, self._bias)
        return out

    def convolution(self) -> Convolution:
        """Return the layer as a network operation with the same summation order."""
        problem, axis = self.problem, self.progress
        sizes = axis.stride, ((axis.begin, axis.end),), 0, axis.dilation, problem.groups
        keywords = Keywords(*sizes, weight_layout="OIX" if axis.convolves else "IOX")
        weight = self._weight.transpose(problem.weight_layout.to_iox(1))
        epilogue = chain_of(problem.epilogue)
        transposed = not axis.convolves
        return Convolution(weight, self._bias, keywords, transposed, epilogue, self.engine.sums)

    def digest(self) -> bytes:
        """Return a digest of everything that results depend on."""
        named = f"{self.progress} {self.problem} {self.engine.fingerprint()} {self.engine.sums}"
        digest = hashlib.sha256(named.encode() + self._weight.tobytes())
        if self._bias is not None:
            digest.update(self._bias.tobytes())
        return digest.digest()

    def _window(self, key: tuple[int, ...]) -> PackedCall:
        batch, inputs, shift, results = key
        axis = self.progress.window(inputs, shift, results)
        problem = self.problem.replace(axes=(axis,), batch=batch)
        call = PreparedCall(Signature.whole(problem), self.engine, self.threads, tune=False)
        window = call.pack(self._weight, self._packings)
        with self._lock:
            while len(self._windows) >= self._limit:
                self._windows.pop(next(iter(self._windows)))
            self._windows[key] = window
        return window
