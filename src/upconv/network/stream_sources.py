"""The source of a network's streams: checked input shapes, and programs per batch and chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..argument_checks import integer
from ..errors import ArgumentError, EngineRefusal, ShapeError
from ..problem import DType
from .compile import Compiler
from .graph import Options, Shape, with_extent
from .kinds import described_shape
from .operands import one_of
from .stream_programs import FAR, Streamed
from .stream_schedule import Schedule
from .values import declared_shape

OpenShape = tuple[int | None, ...]
Opening = Callable[[dict[str, Shape]], Streamed]
_MAX_OPENED = 8


class Source:
    """The state that a stream and its copies share before the batch and the chunk length are known.

    shapes: the input shapes by name, with None for the stream's axis and for an open batch.
    opening: makes the schedule and programs for inputs of known shapes. chunk: the length for which
    kernels are chosen; None means the first push's. dtype: the dtype of chunks and results.
    """

    def __init__(
        self, shapes: Mapping[str, OpenShape], axis: int, chunk: int | None, opening: Opening,
        dtype: DType,
    ) -> None:  # fmt: skip
        self.shapes, self.axis, self.chunk = dict(shapes), axis, chunk
        self.dtype: np.dtype[Any] = dtype.numpy
        self._opening = opening
        self._opened: dict[tuple[int, int], Streamed] = {}
        self.schedule: Schedule = self.streamed(1, chunk or 1).schedule

    def streamed(self, batch: int, chunk: int) -> Streamed:
        """Return the programs for a batch, with kernels chosen for a chunk length."""
        chunk = self.chunk or chunk
        if (batch, chunk) not in self._opened:
            known = {}
            for name, shape in self.shapes.items():
                extents = list(shape)
                extents[0], extents[self.axis] = extents[0] or batch, chunk
                known[name] = tuple(n or 1 for n in extents)
            while len(self._opened) >= _MAX_OPENED:
                del self._opened[next(iter(self._opened))]  # running streams keep theirs
            self._opened[batch, chunk] = self._opening(known)
        return self._opened[batch, chunk]


def source_of(
    declared: Mapping[str, Sequence[int | str | None]],
    compiler: Callable[[dict[str, Shape]], Compiler], axis: int, chunk: int | None,
    options: Options, shapes: dict[str, Any], dtype: DType = DType.FLOAT32,
) -> Source:  # fmt: skip
    """Return the source of a network with these declared inputs; see `Network.stream`.

    dtype: the dtype of chunks and results.
    """
    length = None if chunk is None else integer("chunk", chunk, 1)
    rank = len(next(iter(declared.values()))) - 2
    number = integer("axis", axis, -rank, rank + 1)
    number += (rank + 2) * (number < 0)
    if number < 2:
        expected = f"a spatial axis, {', '.join(map(str, range(-rank, 0)))}"
        raise ArgumentError("axis", str(axis), expected)
    for name in shapes:
        one_of("the name of an input", name, tuple(declared))
    known: dict[str, OpenShape] = {}
    for name, extents in declared.items():
        shape = declared_shape(name, shapes.get(name, extents))
        pairs = zip(extents, shape, strict=False)
        if len(shape) != len(extents) or any(isinstance(a, int) and a != b for a, b in pairs):
            got, expected = described_shape(shape), f"{described_shape(extents)}, as declared"
            raise ShapeError(f"shapes[{name!r}]", got, expected)
        known[name] = tuple(n if isinstance(n, int) else None for n in shape)
        if known[name][number : number + 1] != (None,):
            got, remedy = described_shape(known[name]), "Declare it as None."
            expected = f"open along axis {axis}"
            raise ArgumentError(f"the shape of input {name!r}", got, expected, remedy)
        others = (*known[name][1:number], *known[name][number + 1 :])
        if None in others:
            got, remedy = described_shape(known[name]), f"Pass shapes={{{name!r}: (...)}}."
            expected = f"known except for the batch and axis {axis}"
            raise ArgumentError(f"the shape of input {name!r}", got, expected, remedy)

    def opening(sizes: dict[str, Shape]) -> Streamed:
        far = {name: with_extent(shape, number, FAR) for name, shape in sizes.items()}
        try:
            return Streamed(compiler(far), sizes, number, options, dtype)
        except ShapeError as error:
            message = f"A stream along axis {axis} cannot compute this network: "
            raise EngineRefusal(f"{message}{str(error).rstrip('.')}, at a large size.") from None

    return Source(known, number, length, opening, dtype)
