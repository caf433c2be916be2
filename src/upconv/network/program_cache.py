"""The programs of a network by sizes, compiled on demand; the latest ones are cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from .compile import Compiler
from .graph import Graph, Options, Shape
from .instances import Buffers
from .program import Program

_MOST_PROGRAMS = 32


class Programs:
    """A bounded, thread-safe cache of programs; two threads may compile the same program."""

    def __init__(self, graph: Graph) -> None:
        self.compiler, self._buffers = Compiler(graph), Buffers()
        self._programs: OrderedDict[object, Program] = OrderedDict()

    def compiled(self, shapes: Mapping[str, Shape], options: Options) -> Program:
        """A new program for inputs of these shapes."""
        return Program(partial(self.compiler.compiled, shapes), options, self._buffers)

    def find(self, shapes: Mapping[str, Shape], options: Options) -> Program | None:
        """The cached program for inputs of these shapes, if any."""
        return self._programs.get((*shapes.items(), options))

    def kept(self, shapes: Mapping[str, Shape], options: Options) -> Program:
        """The program for inputs of these shapes, compiled if it is not cached."""
        key = (*shapes.items(), options)
        program = self._programs.pop(key, None)
        if program is None:
            program = self.compiled(shapes, options)
        self._programs[key] = program
        while len(self._programs) > _MOST_PROGRAMS:
            # A thread may be about to run it: drop the reference without closing it.
            self._programs.popitem(last=False)
        for other in list(self._programs.values()):
            other.trim()
        return program
