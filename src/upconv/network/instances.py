"""Program instances: an arena, with the native steps that are bound to it.

An arena is in a buffer, and a network's programs share their buffers. The system maps the pages of
a new buffer one by one, which took 70 ms for HiFi-GAN V1 with 131 frames (one thread of a Zen 4).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf

import numpy as np

from .. import memory
from ..engines.addresses import address_of
from ..engines.base import Maybe
from ..engines.huge_pages import on_huge_pages
from ..engines.jit.cpu import host
from ..engines.jit.program import StepSequence
from ..engines.jit.steps import Step
from . import norms, pointwise, recurrent, windows
from .compile import Compiled
from .graph import Array, Convert, Graph, Lstm, Node, Norm, Operation, Pointwise, array_shape
from .memory import nbytes_of, outside
from .moves import conversion
from .place import root
from .tables import Target

KEPT = 2  # maximum number of idle buffers, and of a program's idle instances
_SPARE = 4  # a new buffer is a quarter larger than needed, for larger sizes later
_ROUNDS = 10  # of timing
_LINE = 64

STEPS: dict[type[Operation], Callable[..., list[Step]]] = {
    Lstm: recurrent.steps,
    Norm: norms.steps,
    Pointwise: pointwise.steps,
}
"""Operation -> its native steps. `windows` has all others, except convolutions and conversions."""


class Buffer:
    """Memory for one running call's arena, aligned to a cache line."""

    def __init__(self, nbytes: int) -> None:
        memory.require(nbytes, "the arena of the program")
        pages = on_huge_pages(nbytes + _LINE)
        room = np.empty(nbytes + _LINE, np.uint8) if pages is None else pages
        first = -room.ctypes.data % _LINE
        self.array = room[first : first + nbytes]


class Buffers:
    """Idle buffers, shared by the instances that are bound to them."""

    def __init__(self) -> None:
        self._idle: deque[Buffer] = deque(maxlen=KEPT)

    def __contains__(self, buffer: Buffer) -> bool:
        return buffer in self._idle

    def take(self, buffer: Buffer) -> bool:
        """Take a buffer for a call; return False if another call is using it."""
        try:
            self._idle.remove(buffer)
        except ValueError:
            return False
        return True

    def fitting(self, nbytes: int) -> Buffer:
        """Take an idle buffer of at least `nbytes`, or allocate one; raise `MemoryLimitError` if it
        does not fit in memory."""
        for buffer in list(self._idle):
            if buffer.array.nbytes >= nbytes and self.take(buffer):
                return buffer
        return Buffer(nbytes + nbytes // _SPARE)

    def give(self, buffer: Buffer) -> None:
        """Give a buffer back, so that other calls can take it."""
        self._idle.append(buffer)


class Instance:
    """An arena with the steps that are bound to it; only one call at a time may run it."""

    def __init__(self, compiled: Compiled, buffer: Buffer) -> None:
        graph, arena, self.buffer = compiled.graph, compiled.arena, buffer
        scratch = address_of(buffer.array) + arena.nbytes
        callers = outside(graph)
        self._outside = [_array(graph, value) for value in callers]
        stand_ins = dict(zip(callers, self._outside, strict=True))
        if graph.held:
            nbytes = max(first + nbytes_of(graph, value) for value, first in graph.held.items())
            self._outside.append(block := np.zeros(nbytes, np.uint8))
            stand_ins |= {v: _array(graph, v, block, first) for v, first in graph.held.items()}
        offsets = arena.offsets.items()
        homes = {v: _array(graph, v, buffer.array, first) for v, first in offsets} | stand_ins
        self._arrays = {}
        for value, shape in graph.shapes.items():
            holder, first = root(graph, value)
            if holder in homes:  # passes leave behind the shapes of values that no longer exist
                part = slice(first, first + shape[graph.part_axis(value)])
                self._arrays[value] = homes[holder][:, part]
        # Outputs in the arena are copied to the results after a run.
        self._copied = [None if v in callers else self._arrays[v] for v in graph.outputs]
        self.by_node = [(node, self._steps(compiled, node, scratch)) for node in graph.nodes]
        steps = (step for _, steps in self.by_node for step in steps)
        self._sequence = StepSequence(steps, stand_ins=self._outside)

    def run(
        self, inputs: Sequence[Array], results: Sequence[Array], block: Maybe, threads: int
    ) -> bool:
        """Run on dense arrays, and the block of held values if there are any; return whether the
        results are valid."""
        pairs = list(zip(results, self._copied, strict=True))
        arrays = [*inputs, *(result for result, copied in pairs if copied is None)]
        if block is not None:
            arrays.append(block)
        if not self._sequence.run(threads, list(map(address_of, arrays))):
            return False
        for result, array in pairs:
            if array is not None:
                np.copyto(result, array)
        return True

    def times(self, threads: int) -> list[float]:
        """Time each node on zeros; return the shortest of several runs, in seconds per node."""
        self.buffer.array[:] = 0
        for array in self._outside:
            array[...] = 0
        sequences = [StepSequence(steps) for _, steps in self.by_node]
        times = [inf] * len(sequences)
        for _ in range(_ROUNDS):
            for number, sequence in enumerate(sequences):
                start = time.perf_counter()
                sequence.run(threads)
                times[number] = min(times[number], time.perf_counter() - start)
        return times

    def _steps(self, compiled: Compiled, node: Node, scratch: int) -> list[Step]:
        """Return the steps of a node, bound to its arrays."""
        outputs, inputs = (
            [self._arrays[value] for value in values] for values in (node.outputs, node.inputs)
        )
        if node in compiled.layers:
            return compiled.layers[node].steps(outputs, inputs, scratch)
        layout = compiled.graph.form(node.outputs[0]).layout
        target = Target(layout, compiled.threads, host())
        if isinstance(node.operation, Convert):
            source = compiled.graph.form(node.inputs[0]).layout
            return conversion(outputs[0], inputs[0], source, target)
        make = STEPS.get(type(node.operation), windows.steps)
        return make(node.operation, outputs, inputs, target)


def _array(graph: Graph, value: int, room: Array | None = None, offset: int = 0) -> Array:
    """Create the array of a value, in new memory or in `room`."""
    form = graph.form(value)
    shape = array_shape(graph.shapes[value], form.layout)
    return np.ndarray(shape, form.dtype.numpy, room, offset)
