"""The programs of a network, by sizes: compiled when first asked for, the latest ones kept."""

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
    """A bounded cache of programs. Any thread may use it; two may compile one in vain."""

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
        """The program for inputs of these shapes, if it is there."""
        return self._programs.get((*shapes.items(), dtype, threads, algorithm))

    def kept(
        self, shapes: Mapping[str, Shape], dtype: DType, threads: int, algorithm: Algorithm
    ) -> Program:
        """The program for inputs of these shapes, compiled if it is not there."""
        key = (*shapes.items(), dtype, threads, algorithm)
        program = self._programs.pop(key, None)
        if program is None:
            program = self.compiled(shapes, dtype, threads, algorithm)
        self._programs[key] = program
        while len(self._programs) > _MOST_PROGRAMS:
            # A thread that is about to run it holds it: it is let go of, and not closed.
            self._programs.popitem(last=False)
        for other in list(self._programs.values()):
            other.trim()
        return program
