"""Casts of entire arrays to the type in which operands are multiplied.

A kernel that does not pack its operands reads a rounded copy. Other kernels round while they pack.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...memory import require
from ...problem import Direction, Problem
from ..addresses import address_of
from ..base import Array, PackedWeight, Primitive
from ..copies import contiguous
from ..workspace import warm
from . import walk
from .compile import compiled
from .cpu import Cpu
from .emit import Module
from .kernel_arguments import ArgumentLayout, Blocks, Record, filled, record
from .rows import Span, Spans, converted
from .steps import Launch
from .values import BFLOAT, BYTES, FLOAT

_ARGUMENTS = ArgumentLayout(walk.NUMBERS + "src* dst*", counters=walk.COUNTERS)
_RANGE = record("first count")
_JOB = 1 << 15  # numbers


@compiled("cast", kept=8)
def cast_code(module: Module, types: tuple[str, ...], cpu: Cpu) -> None:
    """Emit the job `cast`, which converts numbers from the first type via the others in turn."""
    first, *others = types
    with module.function("cast", walk.JOB) as f:
        a, numbers = _ARGUMENTS.reader(f), Record(f, f["inner"], _RANGE)
        src = f.at(a["src"], numbers["first"], first)
        dst = f.at(a["dst"], numbers["first"], types[-1])

        def cast(span: Span) -> None:
            value = span.read(src, first, first)
            for kind in others:
                value = converted(f, value, kind)
            span.write(value, dst, types[-1])

        Spans(f, numbers["count"], cpu.lanes(BYTES[FLOAT])).each(cast)


class Cast:
    """A cast of `count` numbers through a sequence of types."""

    def __init__(self, count: int, types: tuple[str, ...], threads: int, cpu: Cpu) -> None:
        first = np.arange(0, count, _JOB)
        table = filled(_RANGE, len(first), first=first, count=np.minimum(_JOB, count - first))
        code, steps = cast_code(types, cpu), walk.walk_code(cpu)
        threads = min(threads, len(first))
        phases = walk.phases(threads, walk.Phase(code.addresses["cast"], table))
        block = _ARGUMENTS.block(phases=phases.ctypes.data, phase_count=1)
        self._kept = code, steps, table, phases
        self.launch = Launch.of_walk(Blocks(block), steps.addresses["walk"], threads, phases)

    def run(self, source: Array, target: Array) -> None:
        """Cast a contiguous array into another."""
        where = {"src": address_of(source), "dst": address_of(target)}
        self.launch.blocks.run(self.launch.work, self.launch.threads, **where)


class RoundedOperands:
    """A float32 primitive that runs on copies of its operands, rounded to bfloat16."""

    def __init__(self, inner: Any, problem: Problem, threads: int, cpu: Cpu) -> None:
        self._inner: Primitive = inner
        self._arguments = threads, cpu
        self._casts_both = problem.direction is Direction.WEIGHT_GRAD
        shapes = problem.operand_shapes[: 1 + self._casts_both]
        nbytes = 2 * sum(int(np.prod(shape)) * problem.dtype.itemsize for shape in shapes)
        self.workspace_bytes = inner.workspace_bytes + nbytes
        self.resident_bytes, self.predicted_cycles = inner.resident_bytes, inner.predicted_cycles
        self.order = getattr(inner, "order", None)
        self.description = f"{inner.description}, operands rounded before"

    def pack(self, weight: Array) -> PackedWeight:
        """Return the rounded weight in the primitive's order."""
        return self._inner.pack(self._rounded("the weight", weight))

    def run(self, out: Array, a: Array, b: Any, *ends: Any) -> None:
        """Compute into `out`."""
        b = self._rounded("x", b) if self._casts_both else b
        self._inner.run(out, self._rounded("an operand", a), b, *ends)

    def _rounded(self, what: str, array: Array) -> Array:
        require(2 * array.nbytes, f"{what}, rounded to bfloat16")
        result = warm(array.nbytes).view(array.dtype).reshape(array.shape)
        if array.size:
            cast = Cast(array.size, (FLOAT, BFLOAT, FLOAT), *self._arguments)
            cast.run(contiguous(array), result)
        return result

    def close(self) -> None:
        """Close the primitive."""
        self._inner.close()
