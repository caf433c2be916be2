"""The programs of a stream: one per phase, all with the same kernels and packed weights."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from .. import forks
from ..engines import load
from ..engines.ordered_sums import ORDERED
from ..errors import ShapeError
from ..problem import DataLayout, DType
from ..properties import cached_property
from .compile import Choice, Compiler, resized
from .definitions import evaluate
from .digests import digest
from .graph import Array, Convolution, Form, Graph, Options, Shape, array_shape, with_extent
from .histories import Copies, Histories
from .histories import Layout as BlockLayout
from .instances import Buffers
from .layout_choice import laid_out
from .program import Program
from .stream_schedule import Phase, Schedule, State

FAR = 2**12 * 3**3 * 5**2 * 7
"""A length with which to describe convolutions; no program uses it. The usual strides divide it, so
sizes match here if they match at multiples of the strides."""
_MAX_STEPS = 32


class Step(NamedTuple):
    """The work of a push in a given state: its program, and the state afterwards."""

    phase: Phase
    program: Program | Evaluated | None
    results: tuple[Shape, ...]
    """The shape of each output; 0 positions if there are no results."""
    kept: tuple[tuple[Shape, Any], ...]
    """The shape and dtype of each array kept outside the block."""
    layout: BlockLayout
    """The layout of the block that holds all other kept values."""
    copies: Copies
    state: State
    """The counts afterwards minus the counts before."""
    key: int
    """The number of the state afterwards."""


class Streamed:
    """The state that a stream and its copies share: the schedule, kernels and programs.

    shapes: each input's (N, C, *size), with the chunk's length along `axis`. outside: the dtype of
    chunks and results.
    """

    def __init__(
        self, compiler: Compiler, shapes: Mapping[str, Shape], axis: int, options: Options,
        outside: DType,
    ) -> None:  # fmt: skip
        self.axis, self.shapes = axis, dict(shapes)
        self.batch = next(iter(shapes.values()))[0]
        self._outside = Form(dtype=outside)
        self._compiler, self._options = compiler, options
        far = {name: with_extent(shape, axis, FAR) for name, shape in shapes.items()}
        self.graph = graph = resized(compiler.graph, far)
        operations = [node.operation for node in graph.nodes]
        self._by_definition = any(
            isinstance(o, Convolution) and o.sums == ORDERED.sums for o in operations
        )
        self.schedule = Schedule(graph, axis)
        self._listed = [self.schedule.key(self.schedule.begin)]
        self._keys = {self._listed[0]: 0}
        self._steps: dict[tuple[int, int, bool], Step] = {}
        self._buffers, self._lock = Buffers(), threading.Lock()
        forks.hold(self._lock)

    @cached_property
    def choice(self) -> Choice:
        """Layouts and kernels for the length of a chunk, or of enough chunks to yield a result.

        The length is a multiple of the strides; at other lengths, values' sizes might not match.
        """
        count, period = next(iter(self.shapes.values()))[self.axis], self.schedule.period
        count = -(-count // period) * period
        while True:
            shapes = {n: with_extent(s, self.axis, count) for n, s in self.shapes.items()}
            try:
                return self._compiler.choice(shapes, self._options)
            except ShapeError:
                count *= 2

    @cached_property
    def forms(self) -> dict[int, Form]:
        """The form of each value."""
        forms = dict.fromkeys(self.graph.inputs.values(), self._outside)
        first = (DataLayout.NCX,) * len(self.graph.nodes)
        layouts = first if self._by_definition else self.choice.layouts
        for node, layout in zip(self.graph.nodes, layouts, strict=True):
            forms |= dict.fromkeys(node.outputs, Form(layout, self._options.dtype))
        return forms

    def step(self, key: int, state: State, count: int, *, ended: bool) -> Step:
        """Return the step for a push of `count` positions in the state with the number `key`."""
        step = self._steps.get((key, count, ended))
        if step is None or not (ended or step.layout is self.histories.layout):
            with self._lock:
                step = self._new_step(state, count, ended=ended)
                while len(self._steps) >= _MAX_STEPS:
                    del self._steps[next(iter(self._steps))]
                self._steps[key, count, ended] = step
        return step

    def _new_step(self, state: State, count: int, *, ended: bool) -> Step:
        after = self.schedule.after(state, count, ended=ended)
        phase = self.schedule.phase(state, after)
        layout = self.histories.grown(self.schedule.extents(state, after))
        if not ended:  # the last push happens only once, and may need much more room
            self.histories.layout = layout
        graph = self.histories.placed(self._laid_out(phase), phase, layout)
        program = None
        if graph.nodes:
            by_definition = self._by_definition
            program = Evaluated(phase.graph) if by_definition else self._program(graph, phase)
        shapes = phase.graph.shapes
        results = [with_extent(self.graph.shapes[v], self.axis, 0) for v in self.graph.outputs]
        for number, value in zip(phase.results, phase.graph.outputs, strict=False):
            results[number] = shapes[value]
        kept = [
            (array_shape(shapes[n], self.forms[value].layout), self.forms[value].dtype.numpy)
            for value, n in phase.kept.items()
            if value not in self.histories.forms
        ]
        copies = self.histories.copies(state, after, layout)
        moved, key = after.less(state), self.number(after)
        return Step(phase, program, tuple(results), tuple(kept), layout, copies, moved, key)

    @cached_property
    def histories(self) -> Histories:
        """The values that streams keep in a block, with enough room for chunks of equal size."""
        histories = Histories(self.graph.shapes, self.forms, self.axis)
        state, count = self.schedule.begin, next(iter(self.shapes.values()))[self.axis]
        keys = set[tuple[int, ...]]()
        while (key := self.schedule.key(state)) not in keys:
            keys.add(key)
            before, state = state, self.schedule.after(state, count, ended=False)
            histories.layout = histories.grown(self.schedule.extents(before, state))
        return histories

    def number(self, state: State) -> int:
        """Return a state's number; states that differ only by a shift in time share a number."""
        key = self.schedule.key(state)
        if key not in self._keys:
            self._keys[key] = len(self._listed)
            self._listed.append(key)
        return self._keys[key]

    def key(self, number: int) -> tuple[int, ...]:
        """Return the key of the state with this number."""
        return self._listed[number]

    def _laid_out(self, phase: Phase) -> Graph:
        """Give a phase's values forms; kept values have the same forms as in the network."""
        layouts = [self.forms[value].layout for value in phase.values]
        ends = *phase.graph.inputs.values(), *phase.graph.outputs
        inner = *phase.waiting.items(), *phase.kept.items()
        forms = dict.fromkeys(ends, self._outside) | {n: self.forms[value] for value, n in inner}
        return laid_out(phase.graph, layouts, self._options.dtype, forms)

    def _program(self, graph: Graph, phase: Phase) -> Program:
        variants = phase.variants(self.graph, self.choice.variants)
        make = partial(self._compiler.assembled, graph, variants, part=True)
        return Program(make, self._options, self._buffers)

    @cached_property
    def digest(self) -> bytes:
        """A digest of everything that results depend on."""
        return digest(self.graph, self.axis, tuple(self._options), load("jit").fingerprint())


class Evaluated:
    """A phase's graph, evaluated in NumPy because kernels refuse one of its layers."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def run_dense(self, inputs: Sequence[Array], results: Sequence[Array], block: Array) -> None:
        """Run like `Program.run_dense`, without held values."""
        del block
        for result, value in zip(results, evaluate(self._graph, inputs), strict=True):
            result[...] = value
