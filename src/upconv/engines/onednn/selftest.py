"""A self-test of the library on this processor, which excludes implementations that err.

The library chooses implementations and block sizes by the processor's instructions and caches. A
layer that is correct on one machine may therefore be wrong on another. When a process first uses a
direction, the self-test computes a few layers, with bias and epilogue, and compares them with the
reference engine. An implementation that errs is added to `runtime.distrusted`, and the library's
next choice is tested in the same way.

The test takes about 25 milliseconds. Its result is kept for the process, and not saved to disk.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from ... import forks
from ...activations import Activation
from ...geometry import Axis
from ...problem import DataLayout, Direction, Epilogue, Problem
from ..reference import ReferenceEngine
from .candidates import best
from .library import Runtime
from .primitive import OnednnPrimitive

_TOLERANCE = 1e-3  # for float32 results of order 1; faults are of order 1 too


_AXES = {
    "k16 s8": (Axis(3, 16, 8, 1, 4, 4),) * 2,
    "k4 s2": (Axis(4, 4, 2, 1, 1, 1),) * 2,
    "k3": (Axis(7, 3, 1, 1, 1, 1), Axis(6, 3, 1, 1, 1, 1)),
    "line": (Axis(20, 8, 4, 1, 2, 2),),
    "volume": (Axis(3, 3, 2, 1, 1, 0),) * 3,
}
_LAYERS = (("k16 s8", 128, 16, 1), ("k4 s2", 64, 33, 1), ("k4 s2", 32, 32, 32), ("k3", 24, 40, 1),
           ("line", 48, 24, 1), ("volume", 16, 24, 1))  # fmt: skip
"""Axes, input and output channels, groups. The library cuts the first layer's kernel into parts on
every processor seen so far."""


def problems() -> Iterator[Problem]:
    """Yield the problems that the test computes, in both layouts."""
    after = Epilogue(Activation.LEAKY_RELU, 0.2, residual=True)
    for layout, (axes, i, o, groups) in product(DataLayout, _LAYERS):
        bare = Problem(Direction.FORWARD, _AXES[axes], 1, i, o, groups, layout=layout)
        yield bare.replace(bias=True)
        if axes == "k16 s8":
            yield bare.replace(epilogue=after)
            continue  # its gradients would take as long as all other problems
        yield bare.replace(direction=Direction.INPUT_GRAD, bias=True, epilogue=after)
        yield bare.replace(direction=Direction.WEIGHT_GRAD)


_lock = threading.Lock()
forks.hold(_lock)


def ensure(runtime: Runtime, direction: Direction) -> None:
    """Test a direction, unless it has been tested already."""
    with _lock:
        if direction not in runtime.tested:
            run(runtime, direction)
            runtime.tested |= {direction}


def run(runtime: Runtime, direction: Direction) -> None:
    """Add the implementations that err in a direction to `runtime.distrusted`."""
    for problem in (p for p in problems() if p.direction is direction):
        a, b, bias, residual = _operands(problem)
        wanted = _computed(ReferenceEngine().build(problem, 1), problem, a, b, bias, residual)
        while (candidate := best(runtime, problem, 1)) is not None:
            primitive = OnednnPrimitive(runtime, problem, 1, candidate)
            got = _computed(primitive, problem, a, b, bias, residual)
            primitive.close()
            if (np.abs(got - wanted) <= _TOLERANCE).all():
                break
            runtime.distrusted |= {(candidate.offer.operation.kind.value, candidate.implementation)}


def _operands(problem: Problem) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.random(shape, np.float32) - 0.5 for shape in problem.operand_shapes)
    bias = np.ones(problem.result_channels, np.float32) if problem.bias else None
    residual = rng.random(problem.result_shape, np.float32) if problem.epilogue.residual else None
    return a, b / np.float32(problem.longest_sum**0.5), bias, residual


def _computed(primitive: Any, problem: Problem, a: Any, b: Any, bias: Any, residual: Any) -> Any:
    out = np.full(problem.result_shape, np.nan, np.float32)
    b = b if problem.direction is Direction.WEIGHT_GRAD else primitive.pack(b)
    primitive.run(out, a, b, bias, residual)
    return out
