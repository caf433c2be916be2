"""The programs of a stream: one for each phase, all with the same kernels and packed weights."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

from .. import forks
from ..choices import Algorithm
from ..engines import load
from ..errors import ShapeError
from ..problem import DType
from .compile import Choice, Compiled, Compiler, resized
from .convolutions import fitting, problem_of
from .graph import Convolution, Form, Graph, Shape, array_shape
from .instances import Buffers
from .layout import laid_out
from .phases import Phase, Schedule, State
from .program import Program

FAR = 1 << 20
"""A length at which convolutions are described; no program has it."""
_MOST_STEPS = 32


class Step(NamedTuple):
    """What a push does in a state: a program, and how far the stream is afterwards."""

    phase: Phase
    program: Program | None
    results: tuple[Shape, ...]
    """The shape of each output, 0 positions where there is none."""
    kept: tuple[tuple[Shape, Any], ...]
    """The shape and element type of each array that is kept."""
    state: State
    """Counts afterwards, less those before."""
    key: int
    """The number of the state afterwards."""


class Streamed:
    """What a stream and its copies share: the schedule, kernels and programs.

    shapes: (N, C, *size) of each input; the extent of `axis` is a chunk's.
    """

    def __init__(
        self, compiler: Compiler, shapes: Mapping[str, Shape], axis: int, dtype: DType,
        threads: int, algorithm: Algorithm,
    ) -> None:  # fmt: skip
        self.axis, self.shapes = axis, dict(shapes)
        self.batch = next(iter(shapes.values()))[0]
        self._compiler, self._how = compiler, (dtype, threads, algorithm)
        far = {name: self.length(shape, FAR) for name, shape in shapes.items()}
        self.graph = graph = resized(compiler.graph, far)
        convolutions = [
            (i, n) for i, n in enumerate(graph.nodes) if isinstance(n.operation, Convolution)
        ]
        problems = {
            i: problem_of(n.operation, graph.shapes[n.inputs[0]], Form())  # type: ignore[arg-type]
            for i, n in convolutions
        }
        self.schedule = Schedule(graph, {i: p.axes for i, p in problems.items()}, axis - 2)
        self._keys = {self.schedule.key(self.schedule.begin): 0}
        self._steps: dict[tuple[int, int, bool], Step] = {}
        self._buffers, self._lock = Buffers(), threading.Lock()
        forks.hold(self._lock)

    def length(self, shape: Shape, count: int) -> Shape:
        """A shape with so many positions along the axis."""
        return (*shape[: self.axis], count, *shape[self.axis + 1 :])

    @cached_property
    def choice(self) -> Choice:
        """Layouts and kernels for a chunk, or the least number of chunks that give a result."""
        dtype, threads, algorithm = self._how
        count = next(iter(self.shapes.values()))[self.axis]
        while True:
            shapes = {name: self.length(shape, count) for name, shape in self.shapes.items()}
            try:
                return self._compiler.choice(shapes, dtype, threads, algorithm)
            except ShapeError:
                count *= 2

    @cached_property
    def forms(self) -> dict[int, Form]:
        """The form of each value."""
        forms = {value: Form() for value in self.graph.inputs.values()}
        for node, layout in zip(self.graph.nodes, self.choice.layouts, strict=True):
            forms |= dict.fromkeys(node.outputs, Form(layout, self._how[0]))
        return forms

    def step(self, key: int, state: State, count: int, *, ended: bool) -> Step:
        """What a push of `count` positions does in a state, which has this number."""
        step = self._steps.get((key, count, ended))
        if step is None:
            with self._lock:
                step = self._new_step(state, count, ended=ended)
                while len(self._steps) >= _MOST_STEPS:
                    del self._steps[next(iter(self._steps))]
                self._steps[key, count, ended] = step
        return step

    def _new_step(self, state: State, count: int, *, ended: bool) -> Step:
        after = self.schedule.after(state, count, ended=ended)
        phase = self.schedule.phase(state, after)
        graph = self._laid_out(phase)
        program = self._program(graph, phase) if graph.nodes else None
        sizes = dict(zip(phase.results, phase.graph.outputs, strict=False))
        results = tuple(
            self.length(self.graph.shapes[value], 0)
            if number not in sizes
            else phase.graph.shapes[sizes[number]]
            for number, value in enumerate(self.graph.outputs)
        )
        kept = []
        for value, number in zip(phase.kept, phase.graph.outputs[len(sizes) :], strict=True):
            form = self.forms[value]
            kept.append((array_shape(phase.graph.shapes[number], form.layout), form.dtype.numpy))
        return Step(phase, program, results, tuple(kept), after.less(state), self.number(after))

    def number(self, state: State) -> int:
        """The number of a state; states that differ by a shift of the whole stream are one."""
        return self._keys.setdefault(self.schedule.key(state), len(self._keys))

    def _laid_out(self, phase: Phase) -> Graph:
        """A phase's graph with forms; what is kept stays in its own."""
        layouts = [self.forms[value].layout for value in phase.values]
        first = len(phase.graph.inputs) - len(phase.waiting)
        waiting = dict(zip(list(phase.graph.inputs.values())[first:], phase.waiting, strict=True))
        kept = dict(zip(phase.graph.outputs[len(phase.results) :], phase.kept, strict=True))
        inner = {number: self.forms[value] for number, value in (waiting | kept).items()}
        return laid_out(phase.graph, layouts, self._how[0], inner)

    def _program(self, graph: Graph, phase: Phase) -> Program:
        dtype, threads, _ = self._how
        writers = self.graph.writers()
        chosen = self.choice.variants
        operations = {
            node.operation: writers[value].operation
            for node, value in zip(phase.graph.nodes, phase.values, strict=True)
            if isinstance(node.operation, Convolution)
        }

        def compiled(algorithm: Algorithm) -> Compiled:
            variants = {}
            for node in graph.nodes:
                if isinstance(node.operation, Convolution):
                    problem = problem_of(
                        node.operation, graph.shapes[node.inputs[0]], graph.form(node.outputs[0])
                    )
                    wanted = chosen[operations[node.operation]]  # type: ignore[index]
                    variants[node.operation] = fitting(problem, threads, wanted, algorithm)
            return self._compiler.assembled(graph, variants, dtype, threads)

        direct = partial(compiled, Algorithm.DIRECT)
        return Program(compiled(self._how[2]), direct, self._buffers)

    @cached_property
    def digest(self) -> bytes:
        """A digest of all that results depend on."""
        digest = hashlib.sha256(repr((self.axis, self._how, load("jit").fingerprint())).encode())
        for node in self.graph.nodes:
            digest.update(repr((type(node.operation).__name__, node.inputs, node.outputs)).encode())
            if isinstance(node.operation, Convolution):
                digest.update(node.operation.weight.tobytes())
        return digest.digest()
