"""A program: a compiled network as one sequence of native steps, run in one call of the threads.

Steps are bound to addresses. So a program has *instances*, each an arena with its own steps, of
which every running call has one. Steps read and write the caller's arrays where they lie. Arrays
with gaps, and results that overlap an input, are copied.

A call whose Winograd sums overflow is repeated by a program of direct sums.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NoReturn

import numpy as np

from .. import forks, memory
from ..arrays import as_array, check_out, copied
from ..engines.addresses import address_of
from ..engines.huge_pages import on_huge_pages
from ..engines.jit.cpu import host
from ..engines.jit.program import StepSequence
from ..engines.jit.steps import Step
from ..errors import ArgumentError, DTypeError, EngineError, ShapeError
from . import norms, pointwise, windows
from .compile import Compiled
from .explain import explained
from .graph import (
    Array,
    Concat,
    Convert,
    Graph,
    Node,
    Norm,
    Operation,
    Pad,
    PixelShuffle,
    Pointwise,
    Pool,
    Resample,
    Shape,
    Slice,
    array_shape,
)
from .kinds import KINDS
from .memory import Arena, outside
from .moves import conversion
from .place import root

_KEPT = 2  # instances that wait for a call
_ROUNDS = 10  # of timing steps
_LINE = 64
_lock = threading.RLock()
forks.hold(_lock)


STEPS: dict[type[Operation], Callable[..., list[Step]]] = {
    Norm: norms.steps,
    Pointwise: pointwise.steps,
    **dict.fromkeys((Concat, Pad, PixelShuffle, Pool, Resample, Slice), windows.steps),
}
"""The native steps of every operation but convolutions and conversions."""


class Program:
    """A network for inputs of known shapes, ready to run from many threads at once.

    `close`, or the end of a `with` block, lets go of what it holds. A program cannot be pickled.
    """

    def __init__(self, compiled: Compiled, direct: Callable[[], Compiled]) -> None:
        """Bind a compiled graph; `direct` compiles the same network without Winograd's algorithm.

        Raises `MemoryLimitError` where the arena does not fit.
        """
        self._compiled: Compiled | None = compiled
        self._arena = compiled.arena
        self._make_direct: Callable[[], Compiled] = direct
        self._direct: Program | None = None
        graph = compiled.graph
        self._inputs = {name: graph.shapes[value] for name, value in graph.inputs.items()}
        self._outputs = tuple(graph.shapes[value] for value in graph.outputs)
        self._workspace_bytes = max(
            (layer.primitive.workspace_bytes for layer in compiled.layers.values()), default=0
        )
        self._free: deque[_Instance] = deque(maxlen=_KEPT)
        self._free.append(self._instance(compiled))

    @property
    def input_shapes(self) -> dict[str, Shape]:
        """The shapes that inputs must have, by name, in order."""
        return dict(self._inputs)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the results."""
        return self._outputs

    @property
    def memory_bytes(self) -> int:
        """Bytes of the arena of one running call: values and scratch memory."""
        return self._arena.nbytes + self._workspace_bytes

    def run(self, *arrays: Any, out: Any = None) -> Any:
        """Run on float32 arrays, one per input; return the result, or a tuple of several.

        out: an array for the result, or a sequence of arrays for several; it is then returned.

        Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arrays that do not fit.
        """
        compiled = self._compiled
        if compiled is None:
            raise EngineError("This program is closed. Compile the network again.")
        inputs = self._checked(arrays)
        results = self._results(out)
        written = results if out is None else _apart(results, inputs)
        try:
            instance = self._free.pop()
        except IndexError:
            instance = self._instance(compiled)
        held = instance.run(inputs, written, compiled.threads)
        if self._compiled is not None:  # a program that was closed meanwhile keeps nothing
            self._free.append(instance)
        if not held:
            self._direct_program().run(*inputs, out=written)
        if out is not None:
            for result, array in zip(results, written, strict=True):
                if array is not result:
                    np.copyto(result, array)
            return out
        return results[0] if len(results) == 1 else tuple(results)

    __call__ = run

    def explain(self, *, measure: bool = True) -> str:
        """Describe the steps: what was fused, layouts, kernels, time and memory.

        measure: run the steps on zeros, some ten times, for the time that each takes.
        """
        compiled = self._compiled
        if compiled is None:
            raise EngineError("This program is closed. Compile the network again.")
        seconds = self._instance(compiled).times(compiled.threads) if measure else None
        return explained(compiled, self.memory_bytes, seconds)

    def close(self) -> None:
        """Let go of the steps and arenas; a call that is running ends as if nothing happened."""
        self._compiled = None
        self._free.clear()
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        words = "A program is bound to this process's memory and cannot be copied or pickled."
        raise EngineError(f"{words} Pickle the network, and compile it where it is loaded.")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {shape}" for name, shape in self._inputs.items())
        state = "closed, " if self._compiled is None else ""
        return f"<Program {state}{shapes} -> {', '.join(map(str, self._outputs))}>"

    def _instance(self, compiled: Compiled) -> _Instance:
        memory.require(self.memory_bytes, "the arena of the program")
        return _Instance(compiled, self._arena, self._workspace_bytes)

    def _direct_program(self) -> Program:
        with _lock:
            if self._direct is None:
                self._direct = Program(self._make_direct(), self._make_direct)
            return self._direct

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """The arrays of a call, which fit the inputs, without gaps."""
        if len(arrays) != len(self._inputs):
            expected = f"{len(self._inputs)}: {', '.join(self._inputs)}"
            raise ArgumentError("the number of arrays", str(len(arrays)), expected)
        checked = []
        for (name, shape), value in zip(self._inputs.items(), arrays, strict=True):
            array = as_array(name, value)
            if array.shape != shape:
                remedy = "Compile the network for this shape."
                raise ShapeError(f"{name}.shape", str(array.shape), f"{shape}, as compiled", remedy)
            if array.dtype != np.float32:
                raise DTypeError(f"{name}.dtype", str(array.dtype), "float32", "Convert the array.")
            flags = array.flags
            dense = flags.c_contiguous and flags.aligned
            checked.append(array if dense else copied(name, array))
        return checked

    def _results(self, out: Any) -> list[Array]:
        """The arrays for the results: those of the caller, or new ones."""
        if out is None:
            return [np.empty(shape, np.float32) for shape in self._outputs]
        listed = [out] if isinstance(out, np.ndarray) else list(out)
        if len(listed) != len(self._outputs):
            got, expected = f"{len(listed)} arrays", f"{len(self._outputs)}, one per output"
            raise ArgumentError("out", got, expected)
        dtype = np.dtype(np.float32)
        pairs = zip(listed, self._outputs, strict=True)
        return [check_out("out", array, shape, dtype) for array, shape in pairs]


def _apart(results: Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """The results, but for those with gaps, and those that overlap another array: new ones."""
    written, spans = list[Array](), [_span(array) for array in inputs]
    for result in results:
        flags, (begin, end) = result.flags, _span(result)
        dense = flags.c_contiguous and flags.aligned
        if not dense or any(begin < stop and start < end for start, stop in spans):
            result = np.empty(result.shape, result.dtype)
        spans.append((begin, end))
        written.append(result)
    return written


def _span(array: Array) -> tuple[int, int]:
    """The first byte of a dense array, and the one behind it."""
    first = address_of(array)
    return first, first + array.nbytes


class _Instance:
    """An arena with the steps that are bound to it; one call at a time runs it."""

    def __init__(self, compiled: Compiled, places: Arena, workspace_bytes: int) -> None:
        graph, nbytes = compiled.graph, places.nbytes + workspace_bytes + _LINE
        pages = on_huge_pages(nbytes)
        self._memory = np.empty(nbytes, np.uint8) if pages is None else pages
        first = -self._memory.ctypes.data % _LINE
        scratch = self._memory.ctypes.data + first + places.nbytes
        callers = outside(graph)
        self._outside = [_array(graph, value) for value in callers]
        stand_ins = dict(zip(callers, self._outside, strict=True))
        self._arrays = {
            value: _part(graph, value, self._memory[first:], places, stand_ins)
            for value in graph.shapes
            if root(graph, value)[0]
            in {**places.offsets, **stand_ins}  # passes leave shapes behind
        }
        # Outputs that stay in the arena are copied to their results.
        self._copied = [None if v in callers else self._arrays[v] for v in graph.outputs]
        self.by_node = [(node, self._steps(compiled, node, scratch)) for node in graph.nodes]
        steps = (step for _, steps in self.by_node for step in steps)
        self._sequence = StepSequence(steps, stand_ins=self._outside)

    def run(self, inputs: Sequence[Array], results: Sequence[Array], threads: int) -> bool:
        """Run on dense arrays; return whether results hold."""
        pairs = list(zip(results, self._copied, strict=True))
        arrays = [*inputs, *(result for result, copied in pairs if copied is None)]
        if not self._sequence.run(threads, list(map(address_of, arrays))):
            return False
        for result, array in pairs:
            if array is not None:
                np.copyto(result, array)
        return True

    def times(self, threads: int) -> list[float]:
        """Seconds that each node takes, on zeros: the least of some runs in the program's order."""
        self._memory[:] = 0
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
        """The steps of a node on its arrays."""
        outputs, inputs = (
            [self._arrays[value] for value in values] for values in (node.outputs, node.inputs)
        )
        if node in compiled.layers:
            return compiled.layers[node].steps(outputs, inputs, scratch)
        layout = compiled.graph.form(node.outputs[0]).layout
        if isinstance(node.operation, Convert):
            source = compiled.graph.form(node.inputs[0]).layout
            return conversion(outputs[0], inputs[0], source, layout, compiled.threads, host())
        steps = STEPS.get(type(node.operation))
        if steps is None:
            raise EngineError(f"A program cannot compute {KINDS[type(node.operation)].name}.")
        return steps(node.operation, outputs, inputs, layout, compiled.threads, host())


def _array(graph: Graph, value: int, room: Array | None = None, offset: int = 0) -> Array:
    """An array for a value: memory of its own, or some of `room`."""
    form = graph.form(value)
    shape = array_shape(graph.shapes[value], form.layout)
    return np.ndarray(shape, form.dtype.numpy, room, offset)


def _part(
    graph: Graph, value: int, room: Array, places: Arena, stand_ins: Mapping[int, Array]
) -> Array:
    """The array of a value: its own part of the arena, or some channels of another value's."""
    holder, channel = root(graph, value)
    if holder in stand_ins:
        array = stand_ins[holder]
    else:
        array = _array(graph, holder, room, places.offsets[holder])
    return array if holder == value else array[:, channel : channel + graph.shapes[value][1]]
