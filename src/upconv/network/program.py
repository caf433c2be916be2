"""A program: a compiled network as one sequence of native steps, run by a single fork of threads.

Steps are bound to addresses. A program therefore has *instances*, arenas with steps of their own,
and every running call uses one. The instances of a network's programs share buffers; at any time,
each buffer serves only one call. Steps read and write the caller's arrays in place. Arrays with
gaps, and results that overlap an input, are copied.

If Winograd sums overflow, a program with direct sums repeats the call. From then on, inputs that
are not finite go to that program directly.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import numpy as np

from .. import forks
from ..arrays import as_array, check_out, copied, overlap
from ..engine_choice import Algorithm
from ..engines.base import Maybe
from ..engines.nonfinite import is_finite
from ..errors import ArgumentError, DTypeError, EngineError, ShapeError
from .compile import Compiled, Compiler
from .explain import explained
from .graph import Array, Graph, Options, Shape
from .instances import KEPT, Buffers, Instance
from .operands import one_each

_MAX_PROGRAMS = 32  # of a network
_lock = threading.RLock()
forks.hold(_lock)


class Program:
    """A network for inputs of known shapes; many threads may run it at once.

    `close`, or the end of a `with` block, releases its memory. A program cannot be pickled.
    """

    def __init__(
        self, make: Callable[[Options], Compiled], options: Options, buffers: Buffers | None = None
    ) -> None:
        """Compile with `make`, and later once more if Winograd's algorithm must be avoided. Raises
        `MemoryLimitError` if the arena does not fit in memory."""
        self._make, self._options = make, options
        compiled = make(options)
        self._compiled: Compiled | None = compiled
        self._arena, self._buffers = compiled.arena, buffers or Buffers()
        self._direct: Program | None = None
        graph = compiled.graph
        self._inputs = {name: graph.shapes[value] for name, value in graph.inputs.items()}
        self._outputs = tuple(graph.shapes[value] for value in graph.outputs)
        self._workspace_bytes = max(
            (layer.primitive.workspace_bytes for layer in compiled.layers.values()), default=0
        )
        self._free: deque[Instance] = deque(maxlen=KEPT)
        self._let_go(self._instance())

    @property
    def input_shapes(self) -> dict[str, Shape]:
        """The required shapes of the inputs, by name, in order."""
        return dict(self._inputs)

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the results."""
        return self._outputs

    @property
    def memory_bytes(self) -> int:
        """Bytes that one running call needs for values and scratch memory."""
        return self._arena.nbytes + self._workspace_bytes

    def run(self, *arrays: Any, out: Any = None) -> Any:
        """Run on float32 arrays, one per input; return the result, or a tuple of several.

        out: an array for the result, or a sequence of arrays for several; it is then returned.

        Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arrays that do not fit.
        """
        inputs = self._checked(arrays)
        results = self._results(out)
        written = results if out is None else _separate(results, inputs)
        self.run_dense(inputs, written)
        if out is not None:
            for result, array in zip(results, written, strict=True):
                if array is not result:
                    np.copyto(result, array)
            return out
        return results[0] if len(results) == 1 else tuple(results)

    __call__ = run

    def run_dense(
        self, inputs: Sequence[Array], results: Sequence[Array], block: Maybe = None
    ) -> None:
        """Run on unchecked, dense arrays in the graph's forms; no result may overlap another array.
        block: the memory of held values."""
        # Once a call has been repeated, checking the inputs saves later calls a useless run.
        repeated = self._direct is not None and not all(map(is_finite, inputs))
        if repeated or not self._run_once(inputs, results, block):
            self._direct_program().run_dense(inputs, results, block)

    def _run_once(self, inputs: Sequence[Array], results: Sequence[Array], block: Maybe) -> bool:
        """Run on an idle instance; return whether the results are valid."""
        threads, instance = self._open().threads, self._instance()
        valid = instance.run(inputs, results, block, threads)
        self._let_go(instance)
        return valid

    def _instance(self) -> Instance:
        """Take an idle instance, or create one."""
        try:
            while not self._buffers.take((instance := self._free.pop()).buffer):
                pass  # another program is running in its buffer
        except IndexError:
            return Instance(self._open(), self._buffers.fitting(self.memory_bytes))
        return instance

    def _let_go(self, instance: Instance) -> None:
        """Keep an instance for the next call, unless the program has been closed."""
        if self._compiled is not None:
            self._free.append(instance)
        self._buffers.give(instance.buffer)

    def trim(self) -> None:
        """Drop instances whose buffer is no longer in the shared pool."""
        for instance in list(self._free):
            if instance.buffer not in self._buffers:
                with suppress(ValueError):  # another call has just taken it
                    self._free.remove(instance)

    def _open(self) -> Compiled:
        """Return the compiled network; raise `EngineError` if the program is closed."""
        if self._compiled is None:
            raise EngineError("This program is closed. Compile the network again.")
        return self._compiled

    def explain(self, *, measure: bool = True) -> str:
        """Describe the steps: what was fused, layouts, kernels, time and memory.

        measure: time each step by running all steps on zeros ten times.
        """
        compiled = self._open()
        seconds = None
        if measure:
            instance = self._instance()
            seconds = instance.times(compiled.threads)
            self._let_go(instance)
        return explained(compiled, self.memory_bytes, seconds)

    def close(self) -> None:
        """Release the steps and arenas; calls that are running finish normally."""
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
        message = "A program is bound to this process's memory and cannot be copied or pickled."
        raise EngineError(f"{message} Pickle the network, and compile it after loading.")

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {shape}" for name, shape in self._inputs.items())
        state = "closed, " if self._compiled is None else ""
        return f"<Program {state}{shapes} -> {', '.join(map(str, self._outputs))}>"

    def _direct_program(self) -> Program:
        with _lock:
            if self._direct is None:
                options = self._options._replace(algorithm=Algorithm.DIRECT)
                self._direct = Program(self._make, options, self._buffers)
            return self._direct

    def _checked(self, arrays: Sequence[Any]) -> list[Array]:
        """Check a call's arguments against the inputs; return them as dense arrays."""
        one_each("the number of arrays", arrays, self._inputs)
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
        """Return the arrays for the results: the caller's, or new ones."""
        if out is None:
            return [np.empty(shape, np.float32) for shape in self._outputs]
        if not isinstance(out, np.ndarray | Sequence):
            expected = "an array, or a sequence with one per output"
            raise DTypeError("out", f"of type {type(out).__name__}", expected)
        listed = [out] if isinstance(out, np.ndarray) else list(out)
        if len(listed) != len(self._outputs):
            got = f"{len(listed)} array{'s' * (len(listed) != 1)}"
            expected = f"{len(self._outputs)}, one per output"
            raise ArgumentError("out", got, expected)
        dtype = np.dtype(np.float32)
        pairs = zip(listed, self._outputs, strict=True)
        return [check_out("out", array, shape, dtype) for array, shape in pairs]


def _separate(results: Sequence[Array], inputs: Sequence[Array]) -> list[Array]:
    """Replace results that have gaps or overlap another array by new arrays."""
    written, before = list[Array](), [*inputs]
    for result in results:
        fits = result.flags.c_contiguous and result.flags.aligned and not overlap(result, before)
        before.append(result)
        written.append(result if fits else np.empty(result.shape, result.dtype))
    return written


class Programs:
    """A bounded, thread-safe cache of programs; two threads may compile the same program."""

    def __init__(self, graph: Graph) -> None:
        self.compiler, self._buffers = Compiler(graph), Buffers()
        self._programs: OrderedDict[object, Program] = OrderedDict()

    def compiled(self, shapes: Mapping[str, Shape], options: Options) -> Program:
        """Compile a new program for inputs of these shapes."""
        return Program(partial(self.compiler.compiled, shapes), options, self._buffers)

    def find(self, shapes: Mapping[str, Shape], options: Options) -> Program | None:
        """Return the cached program for inputs of these shapes, if any."""
        return self._programs.get((*shapes.items(), options))

    def kept(self, shapes: Mapping[str, Shape], options: Options) -> Program:
        """Return the cached program for inputs of these shapes; compile it if necessary."""
        key = (*shapes.items(), options)
        program = self._programs.pop(key, None)
        if program is None:
            program = self.compiled(shapes, options)
        self._programs[key] = program
        while len(self._programs) > _MAX_PROGRAMS:
            # A thread may be about to run the program: drop the reference without closing it.
            self._programs.popitem(last=False)
        for other in list(self._programs.values()):
            other.trim()
        return program
