"""`NetworkStream`: a network whose inputs arrive in chunks along one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import numpy as np

from .. import memory
from ..arrays import Array, as_array
from ..checks import integer
from ..errors import ArgumentError, DTypeError, ShapeError
from ..problem import DataLayout
from ..stream_state import Stateful, by_one_thread
from .histories import Kept
from .kinds import agree, described_shape
from .operands import one_each
from .stream_batches import StreamBatch
from .stream_programs import Streamed
from .stream_schedule import Schedule, State
from .stream_sources import OpenShape, Source


class Moment(NamedTuple):
    """The state of a stream. A push replaces it as a whole, so a push that fails changes nothing.

    counts, key: the progress, and its number in `streamed`, which is None before the first chunk.
    chunk: the length for which kernels were chosen. kept: the memory of the kept positions.
    """

    counts: State
    key: int = 0
    streamed: Streamed | None = None
    chunk: int = 0
    kept: Kept | None = None


class NetworkStream(Stateful):
    """A network in progress along one axis, made by `Network.stream`.

    Only one thread at a time may call a stream's methods. Copies share the weights, but are
    independent streams that may run in other threads.

    >>> import numpy as np
    >>> from upconv.network import Network
    >>> network = Network({"x": (1, 1, None)})
    >>> network.output(network.conv(network.inputs["x"], np.ones((1, 1, 3)), padding=1))
    >>> stream = network.stream()
    >>> stream.push(np.array([[[1, 2]]], np.float32)), stream.push(np.array([[[3]]], np.float32))
    (array([[[3.]]], dtype=float32), array([[[6.]]], dtype=float32))
    >>> stream.finish()
    array([[[5.]]], dtype=float32)
    """

    __slots__ = ("_ended", "kind", "moment", "source")

    def __init__(self, source: Source) -> None:
        """Create a stream without inputs; call `Network.stream` instead."""
        rank = len(next(iter(source.shapes.values())))
        self.source, self.kind = source, (source.axis - rank, source.dtype)
        self.reset()

    @by_one_thread
    def reset(self) -> None:
        """Start again from the beginning; compiled programs are kept."""
        self.moment, self._ended = Moment(self.source.schedule.begin), False

    @property
    def shapes(self) -> dict[str, OpenShape]:
        """The input shapes by name, with None for open extents."""
        return dict(self.source.shapes)

    @property
    def progress(self) -> Schedule:
        """The schedule by which the first output's results become final."""
        return self.source.schedule

    def prepare(self, chunk: int | None = None, batch: int = 1) -> None:
        """Compile the programs for a stream of equal chunks in advance.

        The first few pushes use different programs, until all values have a history; then one
        program repeats. Copies of this stream share them. chunk: positions per push (default: the
        stream's chunk). batch: the number of streams in the batch.
        """
        default, stated = self.source.chunk, next(iter(self.source.shapes.values()))[0]
        if chunk is None and default is None:
            expected = "a length, as the stream was created without one"
            raise ArgumentError("chunk", "None", expected, "Pass prepare(chunk=...).")
        count = integer("chunk", default if chunk is None else chunk, 1)
        streamed = self.source.streamed(stated or integer("batch", batch, 1), count)
        counts, key, seen = self.source.schedule.begin, 0, set[int]()
        while key not in seen:
            seen.add(key)
            step = streamed.step(key, counts, count, ended=False)
            counts, key = counts.plus(step.state), step.key
        with suppress(ShapeError):  # the network may have no result for so few positions
            streamed.step(key, counts, 0, ended=True)

    def batch(self) -> StreamBatch[Self]:
        """Create an empty batch, in which independent streams of this network share pushes."""
        return StreamBatch(self)

    def push(self, *chunks: Any) -> Any:
        """Return all new results that no later input can change.

        chunks: one float32 array (N, C, *size) per input, all with the same length along the
        stream's axis, which may be 0. The caller may reuse the arrays afterwards.

        Returns (N, F, *size) of any length, or a tuple for several outputs. Raises `ShapeError` or
        `DTypeError`, or `EngineError` after `finish`; an error leaves the stream unchanged.
        """
        return self.given_back(self.advanced(self.converted(chunks)))

    def converted(self, chunks: Sequence[Any]) -> list[Any]:
        """Convert the chunks of a push to the network's inputs."""
        return list(chunks)

    def given_back(self, results: Any) -> Any:
        """Convert the network's results to the form that a push returns."""
        return results

    @by_one_thread
    @memory.bounded("this chunk")
    def advanced(self, chunks: Sequence[Any]) -> Any:
        """Push the network's inputs and return its results; see `push`."""
        self._require_open()
        arrays, streamed = self.checked(chunks, self.batch_size or None), self.moment.streamed
        chunk = self.moment.chunk
        if streamed is None:
            chunk = max(1, self.length(arrays))
            streamed = self.source.streamed(len(arrays[0]), chunk)
        return self._advanced(streamed, chunk, arrays)

    @by_one_thread
    @memory.bounded("the rest of the stream")
    def finish(self) -> Any:
        """Return the remaining results and end the stream; `reset` starts again.

        Raises `ShapeError` if there are too few inputs for the network, and `ArgumentError` if
        there was no chunk at all, not even an empty one, since the batch is then unknown.
        """
        self._require_open()
        if self.moment.streamed is None:
            expected = "at least one chunk, which determines the batch"
            raise ArgumentError("the stream", "empty", expected)
        results = self._advanced(self.moment.streamed, self.moment.chunk, [])
        self._ended = True
        return self.given_back(results)

    def _advanced(self, streamed: Streamed, chunk: int, arrays: Sequence[Array]) -> Any:
        """Compute the results of one phase; without arrays, the last one."""
        counts, key, _, _, kept = self.moment
        count = self.length(arrays) if arrays else 0
        step = streamed.step(key, counts, count, ended=not arrays)
        if kept is None or kept.layout is not step.layout:
            kept = streamed.histories.kept(step.layout, counts.kept, self._arrays())
        results = [np.empty(shape, self.source.dtype) for shape in step.results]
        outside = [np.empty(shape, dtype) for shape, dtype in step.kept]
        if step.program is not None:
            inputs = [*(arrays if count else ()), *kept.outside]
            written = [results[number] for number in step.phase.results]
            step.program.run_dense(inputs, [*written, *outside], kept.block)
        step.copies.run(kept.spare, kept.block)
        kept = Kept(outside, kept.layout, kept.spare, kept.block)
        self.moment = Moment(counts.plus(step.state), step.key, streamed, chunk, kept)
        return results[0] if len(results) == 1 else tuple(results)

    def _arrays(self) -> list[Array]:
        """Return each value's kept positions."""
        counts, _, streamed, _, kept = self.moment
        if streamed is None or kept is None:
            return []
        return list(streamed.histories.arrays(kept, counts.kept))

    def checked(self, chunks: Sequence[Any], batch: int | None) -> list[Array]:
        """Check the chunks against the inputs, each other and the batch; return dense arrays."""
        shapes, axis = self.source.shapes, self.source.axis
        one_each("the number of chunks", chunks, shapes)
        arrays, length = [], None
        for (name, shape), chunk in zip(shapes.items(), chunks, strict=True):
            array = as_array(name, chunk)
            wanted = [*shape]
            wanted[0], wanted[axis] = batch or shape[0], length
            if not agree(wanted, array.shape):
                remedy = "The chunks of all inputs must have the same length and batch."
                expected = described_shape(wanted)
                raise ShapeError(f"the chunk of {name!r}", str(array.shape), expected, remedy)
            dtype = self.source.dtype
            if array.dtype != dtype:
                got, expected = str(array.dtype), str(dtype)
                raise DTypeError(f"the chunk of {name!r}", got, expected, "Convert it.")
            batch, length = array.shape[0], array.shape[axis]
            arrays.append(np.ascontiguousarray(array))
        if batch is not None and batch < 1:
            raise ShapeError("the chunks' batch", "0", "at least 1 stream")
        return arrays

    def _begun(self) -> Self:
        """Create a stream of the same kind and network, without inputs."""
        return type(self)(self.source)

    def _digest(self) -> bytes:
        return self.source.streamed(1, self.source.chunk or 1).digest

    def _state(self) -> list[Any]:
        counts, _, _, chunk, _ = self.moment
        arrays = self._arrays()
        kept = [array.view(np.uint16) if array.dtype.itemsize == 2 else array for array in arrays]
        return [self.batch_size or None, chunk, [*map(list, counts)], kept, self._ended]

    def _with(self, state: list[Any]) -> Self:
        other = self._begun()
        batch, chunk, counts, kept, other._ended = state
        if batch is not None:
            streamed, known = self.source.streamed(batch, chunk), State(*map(tuple, counts))
            forms = [streamed.forms[value].dtype.numpy for value in known.kept]
            arrays = [array.view(dtype) for array, dtype in zip(kept, forms, strict=True)]
            other._go_on(streamed, chunk, known, arrays)
        return other

    def _go_on(self, streamed: Streamed, chunk: int, counts: State, arrays: list[Array]) -> None:
        """Set the state; arrays: each value's kept positions, in the forms of `streamed`."""
        kept = streamed.histories.kept(streamed.histories.layout, counts.kept, arrays)
        self.moment = Moment(counts, streamed.number(counts), streamed, chunk, kept)

    # For batches of streams ----------------------------------------------------------------------

    def require_alike(self, other: NetworkStream) -> None:
        """Raise an error if `other` has ended or comes from another call of `Network.stream`."""
        if other.source is not self.source:
            remedy = "Use copies of one stream, or join without a stream."
            expected = "one from the same call"
            raise ArgumentError("stream", "from another call of stream()", expected, remedy)
        other._require_open()

    @property
    def batch_size(self) -> int:
        """Number of streams in the batch; 0 before the first chunk."""
        return 0 if self.moment.streamed is None else self.moment.streamed.batch

    def length(self, arrays: Sequence[Array]) -> int:
        """Return the number of positions in a chunk."""
        return int(arrays[0].shape[self.source.axis])

    @property
    def phase(self) -> tuple[int, ...]:
        """The state without the values; streams in the same phase can share a batch."""
        counts, key, streamed, *_ = self.moment
        return self.source.schedule.key(counts) if streamed is None else streamed.key(key)

    def joined(
        self, streams: Sequence[NetworkStream], batch: int, rows: slice = slice(None)
    ) -> Self:  # fmt: skip
        """Join these rows of streams that are in one phase; some streams may have no rows yet."""
        result, opened = self._begun(), [s for s in streams if s.moment.streamed]
        if opened:
            counts, chunk = opened[0].moment.counts, opened[0].moment.chunk
            streamed = self.source.streamed(batch, chunk)
            columns = zip(*(stream._arrays_in(streamed, rows) for stream in opened), strict=True)
            arrays = [np.ascontiguousarray(np.concatenate(column)) for column in columns]
            result._go_on(streamed, chunk, counts, arrays)
        return result

    def _arrays_in(self, streamed: Streamed, rows: slice) -> Iterator[Array]:
        """Yield rows of each value's kept positions, in the forms of `streamed`."""
        counts, _, known, *_ = self.moment
        forms = {} if known is None else known.forms
        for value, array in zip(counts.kept, self._arrays(), strict=True):
            before, after = forms[value].layout, streamed.forms[value].layout
            if before is not after:
                array = np.moveaxis(array, *((1, -1) if before is DataLayout.NCX else (-1, 1)))
            yield array[rows]
