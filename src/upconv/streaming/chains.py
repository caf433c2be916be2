"""Streams in a row, activations between them, and sums of branches: whole decoders by chunks.

What one stage returns is the next one's chunk. In a sum every branch gets the same chunks; what one
branch returns before the others waits for them. So every result comes as soon as its layers allow,
and has the bits of the same layers called one after another on the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import reduce
from typing import Any, Self

import numpy as np

from .. import memory
from ..arrays import Array, as_array
from ..checks import number
from ..errors import ArgumentError, DTypeError, ShapeError, brief
from ..keywords import epilogue, frozen_activation
from ..problem import Epilogue
from ..progress import Abreast, Chained
from ..states import Stateful
from .streams import Stream


def chain(*stages: Any) -> Chain:
    """Stages one after another: streams, sums (`add`), chains, and names of activations.

    An activation is written as in `conv_transpose` ("tanh", ("leaky_relu", 0.1)). Streams are
    copied, and begin anew. Raises `DTypeError` for what is no stage.

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
    """The sum of branches that get the same input, times `scale`; added from first to last.

    Each branch is a stage or a sequence of stages; an empty one hands its input on, so that
    `add((), (first, second))` is a residual connection. Branches have equal rates; a sum that they
    reach with different totals is refused by `finish`. Raises `ArgumentError`.

    >>> import numpy as np
    >>> import upconv
    >>> same = upconv.conv_stream(np.ones((1, 1, 1)))
    >>> add((), same, scale=0.5).push(np.array([[[1.0, 2.0]]]))
    array([[[1., 2.]]])
    """
    made = []
    for i, branch in enumerate(branches):
        several = isinstance(branch, tuple | list)
        made.append(chain(*branch) if several else chain(_stage(f"branches[{i}]", branch)))
    if not made or len({branch.progress.rate for branch in made}) > 1:
        rates = ", ".join(str(branch.progress.rate) for branch in made) or "none"
        remedy = "Results are added one by one."
        raise ArgumentError("branches", f"of rates {rates}", "one or more of one rate", remedy)
    factor = number("scale", scale, remedy="It is what the sum is multiplied by.")
    return Add(tuple(made), factor)


def _stage(name: str, given: Any) -> Stage:
    if isinstance(given, Stream | Chain | Add | Activate):
        stage: Stage = given.copy()
        stage.reset()
        return stage
    if isinstance(given, str | tuple):
        return Activate(epilogue(frozen_activation(given), False))
    expected = "a stream, a chain, a sum or the name of an activation"
    remedy = "Make streams with upconv.stream or upconv.conv_stream."
    raise DTypeError(name, f"{brief(given)} ({type(given).__name__})", expected, remedy)


class Activate:
    """An activation as a stage, with the bits of one inside a layer."""

    progress = Chained(())
    kind = None

    def __init__(self, kind: Epilogue) -> None:
        self._kind = kind

    def push(self, chunk: Any) -> Array:
        """f(chunk); 16-bit types are computed on as float32."""
        from ..engines.jit.rows import activate  # loads the compiler

        x = as_array("chunk", chunk)
        wide = np.float64 if x.dtype == np.float64 else np.float32
        values = np.array(x, wide, order="C")
        activate(self._kind.activation, self._kind.slope, values)
        with np.errstate(all="ignore"):
            return values.astype(x.dtype, copy=False)

    def copy(self) -> Activate:
        """Itself: it has no state."""
        return self

    def reset(self) -> None:
        """Nothing to do."""

    def _rest(self) -> None:
        """Nothing is held back."""

    def _digest(self) -> bytes:
        return hashlib.sha256(repr(self._kind).encode()).digest()

    def _state(self) -> list[Any]:
        return []

    def _with(self, _: list[Any]) -> Activate:
        return self


class _Composed(Stateful):
    """What chains and sums share: parts, the end, states."""

    def __init__(self, parts: tuple[Stage, ...]) -> None:
        kinds = [part.kind for part in parts if part.kind is not None]
        self.kind = kinds[0] if kinds else None
        for axis, dtype in kinds:
            if (axis, dtype) != kinds[0]:
                told = " and ".join(f"{d} along axis {a}" for a, d in ((axis, dtype), kinds[0]))
                remedy = "Make all of them with one layout and one dtype."
                raise ArgumentError("stages", f"of {told}", "of one layout and dtype", remedy)
        self._axis, self._dtype = self.kind or (-1, np.dtype(np.float32))
        self._parts = parts
        self._ended = False
        self._last: Array | None = None  # an empty result, for its shape

    @memory.bounded("this chunk")
    def push(self, chunk: Any) -> Array:
        """All results that no later input can change; see `Stream.push`.

        After an error, other than one about the chunk, `reset` it: parts may have gone on.
        """
        self._require_open()
        x = as_array("chunk", chunk)
        if x.ndim < 2:
            expected = "2 axes, or 3 with a batch"
            raise ShapeError("chunk.shape", str(x.shape), expected, "One of them is of channels.")
        y = self._pushed(x)
        self._last = _cut(y, self._axis, 0, 0)
        return y.copy() if np.may_share_memory(x, y) else y  # x is the caller's

    @memory.bounded("the rest of the stream")
    def finish(self) -> Array:
        """The rest of the results; see `Stream.finish`."""
        self._require_open()
        y = self._rest()
        self._ended = True
        if y is None:
            if self._last is None:
                expected = "at least one chunk, which says what the batch is"
                raise ArgumentError("the stream", "empty", expected)
            return self._last
        return y

    def reset(self) -> None:
        """Go back to the begin; what was prepared stays."""
        for part in self._parts:
            part.reset()
        self._ended, self._last = False, None

    def __copy__(self) -> Self:
        return self.copy()  # parts have states of their own

    def _of(self, parts: tuple[Stage, ...]) -> Self:
        return type(self)(parts)

    def _state(self) -> list[Any]:
        return [self._ended, self._last, [part._state() for part in self._parts]]

    def _with(self, state: list[Any]) -> Self:
        ended, last, parts = state
        pairs = zip(self._parts, parts, strict=True)
        other = self._of(tuple(part._with(one) for part, one in pairs))
        other._ended, other._last = ended, last
        return other

    def _pushed(self, x: Array) -> Array:
        raise NotImplementedError

    def _rest(self) -> Array | None:
        raise NotImplementedError

    def _digest(self) -> bytes:
        parts = b"".join(part._digest() for part in self._parts)
        return hashlib.sha256(type(self).__name__.encode() + parts).digest()


class Chain(_Composed):
    """Stages one after another, made by `chain`; used like a `Stream`."""

    @property
    def progress(self) -> Chained:
        """After how many inputs a result is final, all stages counted."""
        return Chained(tuple(part.progress for part in self._parts))

    def _pushed(self, x: Array) -> Array:
        for part in self._parts:
            x = part.push(x)
        return x

    def _rest(self) -> Array | None:
        x: Array | None = None
        for part in self._parts:
            pushed = None if x is None else part.push(x)
            x = _joined(pushed, part._rest(), self._axis)
        return x


class Add(_Composed):
    """A sum of branches, made by `add`; used like a `Stream`."""

    def __init__(self, parts: tuple[Stage, ...], scale: float) -> None:
        super().__init__(parts)
        self._scale = scale
        self._waiting: list[Array | None] = [None] * len(parts)

    @property
    def progress(self) -> Abreast:
        """After how many inputs a result is final: that of the slowest branch."""
        return Abreast(tuple(part.progress for part in self._parts))

    def reset(self) -> None:
        """Go back to the begin; what was prepared stays."""
        super().reset()
        self._waiting = [None] * len(self._parts)

    def _of(self, parts: tuple[Stage, ...]) -> Self:
        return type(self)(parts, self._scale)

    def _pushed(self, x: Array) -> Array:
        return self._added(self._arrived([part.push(x) for part in self._parts]))

    def _rest(self) -> Array | None:
        arrived = self._arrived([part._rest() for part in self._parts])
        sizes = {0 if each is None else each.shape[self._axis] for each in arrived}
        if len(sizes) > 1:
            got = f"of different totals, by up to {max(sizes) - min(sizes)} results"
            remedy = "Pad the branches so that they return as many results."
            raise ShapeError("the branches' results", got, "of one total", remedy)
        there = [each for each in arrived if each is not None]
        return self._added(there) if there and sizes != {0} else next(iter(there), None)

    def _arrived(self, new: list[Array | None]) -> list[Array | None]:
        """What each branch has returned and no sum has used."""
        pairs = zip(self._waiting, new, strict=True)
        return [_joined(old, more, self._axis) for old, more in pairs]

    def _added(self, arrived: Sequence[Array | None]) -> Array:
        """The sum of what all branches have; the rest of it waits."""
        there, axis = [each for each in arrived if each is not None], self._axis
        size = min(each.shape[axis] for each in there)
        ready = [_cut(each, axis, 0, size) for each in there]
        if len({each.shape for each in ready}) > 1:
            shapes = " and ".join(sorted({str(each.shape) for each in ready}))
            remedy = "Branches end in as many channels."
            raise ShapeError("the branches' results", shapes, "of one shape", remedy)
        self._waiting = [
            _cut(each, axis, size, None).copy() if each.shape[axis] > size else None
            for each in there
        ]
        with np.errstate(all="ignore"):
            total = reduce(np.add, ready[1:], ready[0])
            return total if self._scale == 1.0 else total * total.dtype.type(self._scale)

    def _digest(self) -> bytes:
        return hashlib.sha256(super()._digest() + repr(self._scale).encode()).digest()

    def _state(self) -> list[Any]:
        return [super()._state(), [*self._waiting]]

    def _with(self, state: list[Any]) -> Self:
        other = super()._with(state[0])
        other._waiting = [*state[1]]
        return other


def _cut(array: Array, axis: int, start: int, stop: int | None) -> Array:
    """Positions [start, stop) along the axis that streams go along."""
    return array[..., start:stop] if axis == -1 else array[..., start:stop, :]


def _joined(old: Array | None, new: Array | None, axis: int) -> Array | None:
    """One after the other, either of which there may not be."""
    if old is None or new is None:
        return new if old is None else old
    try:
        return np.concatenate((old, new), axis)
    except ValueError as error:
        raise ShapeError("chunk.shape", f"other than before ({error})", "as before") from None


Stage = Stream | Activate | Chain | Add
