"""Sequences of streams with activations, and sums of branches: whole decoders in chunks.

A chain builds a network from its stages, and streams that network. Convolutions keep the summation
order of their streams' engines, and weights are not changed. The results are therefore
bit-identical to those of the same layers called one after another on the whole input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Self

import numpy as np

from .. import memory
from ..argument_checks import number
from ..arrays import Array, as_array, same_dtype
from ..engine_choice import Algorithm
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from ..keywords import epilogue, frozen_activation
from ..network import Network, Value
from ..network.compile import Compiler
from ..network.graph import Graph, Options, Pointwise
from ..network.stream_programs import FAR
from ..network.stream_schedule import Schedule
from ..network.stream_sources import source_of
from ..network.streams import NetworkStream
from ..problem import DType, Epilogue
from ..stream_bytes import Stateful, by_one_thread
from ..threads import resolved
from .layer_primitives import chain_of, require_fit
from .streams import Stream


def chain(*stages: Any) -> Chain:
    """Make a chain of stages: streams, sums (`add`), other chains, and activations.

    Write activations as in `conv_transpose` ("tanh", ("leaky_relu", 0.1)). Streams are copied, and
    the copies start from the beginning. Raises `DTypeError` for an object that is not a stage, and
    `ShapeError` for channels that do not fit.

    >>> import numpy as np
    >>> import upconv
    >>> up = upconv.stream(np.ones((2, 2, 4), np.float32), stride=2, padding=1)
    >>> smooth = upconv.conv_stream(np.ones((2, 2, 3), np.float32), padding=1)
    >>> decoder = chain(up, add((), ("leaky_relu:0.1", smooth)), "tanh")
    >>> decoder.latency, decoder.lookahead
    (2, 1)
    >>> [decoder.push(np.zeros((1, 2, 5), np.float32)).shape[-1] for _ in range(3)]
    [8, 10, 10]
    """
    return Chain(tuple(_stage(f"stages[{i}]", stage) for i, stage in enumerate(stages)))


def add(*branches: Any, scale: float = 1.0) -> Add:
    """Make a sum of branches with the same input, added from first to last, times `scale`.

    Each branch is a stage or a sequence of stages. An empty sequence returns its input, so
    `add((), (first, second))` is a residual connection. Raises `ArgumentError` or `ShapeError`
    unless all branches have the same rate, channels and total number of results.

    >>> import numpy as np
    >>> import upconv
    >>> same = upconv.conv_stream(np.ones((1, 1, 1)))
    >>> add((), same, scale=0.5).push(np.array([[[1.0, 2.0]]]))
    array([[[1., 2.]]])
    """
    chains = []
    for i, branch in enumerate(branches):
        several = isinstance(branch, tuple | list)
        chains.append(chain(*branch) if several else Chain((_stage(f"branches[{i}]", branch),)))
    if not chains:
        raise ArgumentError("branches", "none", "at least one")
    factor = number("scale", scale, remedy="It is the factor of the sum.")
    return Add(tuple(chains), factor)


def _stage(name: str, value: Any) -> Stage:
    if isinstance(value, Stream | Chain | Add):
        stage = value.copy()
        stage.reset()
        return stage
    if isinstance(value, str | tuple):
        return epilogue(frozen_activation(value), False)
    expected = "a stream, a chain, a sum or the name of an activation"
    remedy = "Make streams with upconv.stream or upconv.conv_stream."
    raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", expected, remedy)


class Composed(Stateful):
    """Base class of chains and sums: their parts, and the stream of the network they form.

    The layers determine channels and dtype; without layers, the first chunk does.
    """

    def __init__(self, parts: tuple[Stage, ...]) -> None:
        self._parts = parts
        layers = [stream.layer for stream in self._streams()]
        self.kind = (layers[0].axis, layers[0].dtype) if layers else None
        for layer in layers:
            if (layer.axis, layer.dtype) != self.kind:
                pairs = (layer.axis, layer.dtype), (layers[0].axis, layers[0].dtype)
                got = " and ".join(f"{dtype} along axis {axis}" for axis, dtype in pairs)
                remedy = "Create all streams with the same layout and dtype."
                raise ArgumentError("stages", f"of {got}", "of one layout and dtype", remedy)
        self._threads = max((layer.threads for layer in layers), default=resolved(None))
        self._channels = layers[0].channels if layers else 1
        self._dtype = layers[0].dtype if layers else np.dtype(np.float32)
        self._networks: dict[tuple[int, np.dtype[Any]], NetworkStream] = {}  # before any chunk
        self._graph(self._channels, self._dtype)  # raises if the parts do not fit
        self.reset()

    @by_one_thread
    def reset(self) -> None:
        """Start again from the beginning; prepared primitives are kept."""
        self._stream: NetworkStream | None = None
        self._batch: list[int] | None = None  # [] or [N], once the first chunk is known
        self._ended = False

    @property
    def progress(self) -> Schedule:
        """The schedule by which the results become final."""
        return self._network(self._channels, self._dtype).progress

    @by_one_thread
    @memory.bounded("this chunk")
    def push(self, chunk: Any) -> Array:
        """Return all new results that no later input can change; see `Stream.push`."""
        self._require_open()
        x = as_array("chunk", chunk)
        channels, axis = (None, -1) if self.kind is None else (self._channels, self.kind[0])
        require_fit(x, self._batch, channels, axis)
        if self.kind is not None and x.dtype != self._dtype:
            same_dtype("the stream", self._dtype, "chunk", x.dtype)
        batch = list(x.shape[:-2])
        if self._last:
            x = x.swapaxes(-2, -1)
        stream = self._stream or self._network(x.shape[-2], x.dtype).copy()
        shape = (*(batch or [1]), *x.shape[-2:])
        y = stream.push(x.reshape(shape) if shape[0] else np.zeros((1, *shape[1:]), x.dtype))
        self._stream, self._batch = stream, batch
        return self._outside(y, batch)

    @by_one_thread
    @memory.bounded("the rest of the stream")
    def finish(self) -> Array:
        """Return the remaining results; see `Stream.finish`."""
        self._require_open()
        if self._stream is None or self._batch is None:
            expected = "at least one chunk, which determines the batch"
            raise ArgumentError("the stream", "empty", expected)
        y = self._stream.finish()
        self._ended = True
        return self._outside(y, self._batch)

    @property
    def _last(self) -> bool:
        """Whether the channel axis is last."""
        return self.kind is not None and self.kind[0] == -2

    def _outside(self, y: Array, batch: list[int]) -> Array:
        """Convert results to the batch axis and layout of the caller's chunks."""
        y = y[: batch[0]] if batch else y[0]
        return np.ascontiguousarray(y.swapaxes(-2, -1)) if self._last else y

    def _network(self, channels: int, dtype: np.dtype[Any]) -> NetworkStream:
        """Return the network's stream before any chunk."""
        if (channels, dtype) not in self._networks:
            graph = self._graph(channels, dtype)
            compiler = Compiler(graph, fused=dtype.itemsize > 2)  # 16 bits: round every value
            kind = DType(dtype.name)
            options = Options(kind, self._threads, Algorithm.DIRECT)
            shapes: Any = {"chunk": (None, channels, None)}
            source = source_of(shapes, lambda _: compiler, -1, None, options, {}, kind)
            self._networks[channels, dtype] = NetworkStream(source)
        return self._networks[channels, dtype]

    def _graph(self, channels: int, dtype: np.dtype[Any]) -> Graph:
        """Build the network's graph for a long chunk."""
        network = Network({"chunk": (1, channels, FAR)})
        network.output(self.value(network.inputs["chunk"], dtype))
        return network.graph()

    def value(self, x: Value, dtype: np.dtype[Any]) -> Value:
        """Apply the parts to a value of a network."""
        raise NotImplementedError

    def _streams(self) -> Iterator[Stream]:
        for part in self._parts:
            if isinstance(part, Composed):
                yield from part._streams()
            elif isinstance(part, Stream):
                yield part

    def _arguments(self) -> tuple[Any, ...]:
        return (self._parts,)

    def _digest(self) -> bytes:
        digest = hashlib.sha256(repr((type(self).__name__, *self._arguments()[1:])).encode())
        for part in self._parts:
            digest.update(repr(part).encode() if isinstance(part, Epilogue) else part._digest())
        return digest.digest()

    def _state(self) -> list[Any]:
        stream = self._stream
        if stream is None or stream.kind is None:
            return [self._ended, self._batch, None, None, None]
        channels = next(iter(stream.shapes.values()))[1]
        return [self._ended, self._batch, channels, stream.kind[1].name, stream._state()]

    def _with(self, state: list[Any]) -> Self:
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.reset()
        other._ended, other._batch, channels, dtype, inner = state
        if inner is not None:
            other._stream = other._network(channels, DType(dtype).numpy)._with(inner)
        return other

    def __copy__(self) -> Self:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._arguments(), self._state())


def _restored(kind: type[Composed], arguments: tuple[Any, ...], state: list[Any]) -> Composed:
    return kind(*arguments)._with(state)


class Chain(Composed):
    """Stages one after another, made by `chain`; used like a `Stream`."""

    def value(self, x: Value, dtype: np.dtype[Any]) -> Value:
        """Apply the stages one after another."""
        for part in self._parts:
            if isinstance(part, Composed):
                x = part.value(x, dtype)
            elif isinstance(part, Stream):
                x = x.network.insert(part.layer.convolution(), x)
            else:
                x = x.network.insert(Pointwise(chain_of(part)), x)
        return x


class Add(Composed):
    """A sum of branches, made by `add`; used like a `Stream`."""

    def __init__(self, parts: tuple[Chain, ...], scale: float) -> None:
        self._scale, self._branches = scale, parts
        super().__init__(parts)

    def value(self, x: Value, dtype: np.dtype[Any]) -> Value:
        """Add the values of all branches, and multiply by the scale."""
        values = [branch.value(x, dtype) for branch in self._branches]
        channels, sizes = ([v.shape[axis] or 0 for v in values] for axis in (1, 2))
        rates = [Fraction(n, x.shape[2] or 1).limit_denominator(1000) for n in sizes]
        if len(set(rates)) > 1:
            got, remedy = f"of rates {', '.join(map(str, rates))}", "Match their strides."
            raise ArgumentError("branches", got, "branches of equal rate", remedy)
        if len(set(channels)) > 1:
            got, remedy = f"of {channels} channels", "Match their output channels."
            raise ShapeError("the branches' results", got, "of one shape", remedy)
        if len(set(sizes)) > 1:
            got = f"of different totals, by up to {max(sizes) - min(sizes)} results"
            remedy = "Pad the branches so that all return the same number of results."
            raise ShapeError("the branches' results", got, "of equal totals", remedy)
        total = sum(values[1:], start=values[0])
        if self._scale == 1.0:
            return total
        with np.errstate(over="ignore"):  # infinity in float32 is a valid scale
            factor = float(dtype.type(self._scale))
        return total * factor

    def _arguments(self) -> tuple[Any, ...]:
        return self._parts, self._scale


Stage = Stream | Chain | Add | Epilogue
