"""The programs of a network, by sizes: compiled on demand, the latest ones cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from ..choices import Algorithm
from ..problem import DType
from .compile import Compiler
from .graph import Graph, Shape
from .instances import Buffers
from .program import Program

_MOST_PROGRAMS = 32


class Programs:
    """A bounded, thread-safe cache of programs; two threads may compile the same one."""

    def __init__(self, graph: Graph) -> None:
        self.compiler, self._buffers = Compiler(graph), Buffers()
        self._programs: OrderedDict[object, Program] = OrderedDict()

    def compiled(
        self, shapes: Mapping[str, Shape], dtype: DType, threads: int, algorithm: Algorithm
    ) -> Program:
        """A new program for inputs of these shapes."""
        compile_as = partial(self.compiler.compiled, shapes, dtype, threads)
        direct = partial(compile_as, Algorithm.DIRECT)
        return Program(compile_as(algorithm), direct, self._buffers)

    def find(
        self, shapes: Mapping[str, Shape], dtype: DType, threads: int, algorithm: Algorithm
    ) -> Program | None:
        """The cached program for inputs of these shapes, if any."""
        return self._programs.get((*shapes.items(), dtype, threads, algorithm))

    def kept(
        self, shapes: Mapping[str, Shape], dtype: DType, threads: int, algorithm: Algorithm
    ) -> Program:
        """The program for inputs of these shapes, compiled if it is not cached."""
        key = (*shapes.items(), dtype, threads, algorithm)
        program = self._programs.pop(key, None)
        if program is None:
            program = self.compiled(shapes, dtype, threads, algorithm)
        self._programs[key] = program
        while len(self._programs) > _MOST_PROGRAMS:
            # A thread may be about to run it: drop the reference without closing it.
            self._programs.popitem(last=False)
        for other in list(self._programs.values()):
            other.trim()
        return program
