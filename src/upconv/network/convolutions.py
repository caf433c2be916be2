"""A network's convolutions: their problems, the choice of kernels, and packed weights.

The engine's cost model chooses kernels for weights that are packed in advance. It does not count
memory reads of weights, though each run reads every weight once from beyond the L2 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from ..activations import Activation
from ..argument_checks import Frozen
from ..engine_choice import Algorithm
from ..engines import load
from ..engines.base import Candidate, PackedWeight, Primitive, ranked
from ..engines.jit.activation import ActivationEpilogue
from ..engines.jit.channels.candidates import CHANNELS
from ..engines.jit.steps import Step
from ..errors import EngineError
from ..execution import Packings
from ..keywords import epilogue as epilogue_of
from ..primitives import Entry, shared_cache
from ..problem import DType, Epilogue, Problem
from .fuse import sums
from .graph import Array, Chain, Convolution, Form, Op, Shape
from .kinds import signature_of


class Layer(NamedTuple):
    """A convolution ready to run: its kernel, packed weight, bias and slopes."""

    operation: Convolution
    variant: str
    entry: Entry
    weight: PackedWeight
    bias: Array | None
    slopes: Array | None

    @property
    def primitive(self) -> Primitive:
        """The kernel, which stays open as long as the entry is referenced."""
        return self.entry.primitive

    def steps(self, outputs: Sequence[Array], inputs: Sequence[Array], scratch: int) -> list[Step]:
        """Return the native steps, bound to a node's arrays and the scratch memory."""
        chain = self.operation.epilogue
        residual = inputs[chain[0].operand.number] if sums(chain) else None  # type: ignore[union-attr]
        second = outputs[1] if len(outputs) > 1 else None
        arrays = outputs[0], inputs[0], self.weight, self.bias, residual
        return self.primitive.steps(*arrays, scratch, self.slopes, second)  # type: ignore[attr-defined, no-any-return]


def problem_of(operation: Convolution, shape: Shape, form: Form) -> Problem:
    """Return the problem of a convolution for an input shape (N, C, *size) and a memory form."""
    added, second = sums(operation.epilogue), _second(operation.epilogue)
    epilogue = epilogue_of(_activation(operation.epilogue), added > 0)
    if second is not None:
        slope = float(second.operand or 0.0)  # type: ignore[arg-type]  # a number
        epilogue = replace(epilogue, second=Activation(second.name), second_slope=slope)
    return signature_of(operation, shape).problem.replace(
        dtype=form.dtype, layout=form.layout, epilogue=epilogue, accumulate=added == 2
    )


def _activation(chain: Chain) -> Frozen:
    """Return the activation in a chain, as an argument of `epilogue_of`."""
    rest = chain[sums(chain) :]
    if not rest or rest[0].name == "store":
        return None
    op = rest[0]
    if isinstance(op.operand, np.ndarray):
        return op.name, None  # slopes are arguments of each run
    return op.name if op.operand is None else (op.name, op.operand)


def _second(chain: Chain) -> Op | None:
    """Return the activation that computes a chain's second result, if there is one."""
    return chain[-1] if len(chain) > 1 and chain[-2].name == "store" else None


def priced(problem: Problem) -> Problem:
    """Return the problem that stands for this one in the cost model.

    The model distinguishes epilogues only by their work per tile: whether they add a residual, and
    whether their activation takes many instructions.
    """
    epilogue = problem.epilogue
    if not ActivationEpilogue.of(epilogue).is_cheap:
        return problem
    plain = Epilogue(residual=epilogue.residual or problem.accumulate)
    return problem.replace(epilogue=plain, accumulate=False)


def candidate(
    problem: Problem, threads: int, algorithm: Algorithm, sums: str | None = None
) -> Candidate:
    """Choose a kernel by the cost model, for a weight packed in advance.

    The time is infinite if no kernel adds in the order `sums`: some orders exist in one layout.
    """
    listed = _candidates(problem, threads, algorithm)
    if sums is not None:
        nothing = Candidate("jit", "", inf, sums=sums)
        listed = [c for c in listed if c.possible and c.sums == sums] or [nothing]
    return ranked(listed)[0]


def fitting(
    problem: Problem, threads: int, variant: str, algorithm: Algorithm, sums: str | None
) -> str:
    """Return the variant if it can compute the problem, else one with the same summation order."""
    variant = variant or CHANNELS  # a problem without products has no variant, so any order will do
    listed = _candidates(problem, threads, algorithm)
    same = [candidate for candidate in listed if candidate.variant == variant]
    if any(candidate.possible for candidate in same):
        return variant
    orders = {sums} - {None} or {candidate.sums for candidate in same} - {None}
    alike = [candidate for candidate in ranked(listed) if candidate.sums in orders]
    return (alike or ranked(listed))[0].variant


def _candidates(problem: Problem, threads: int, algorithm: Algorithm) -> list[Candidate]:
    engine = load("jit")
    reason = engine.refuses(problem)
    if reason is not None:
        remedy = "Run the network on smaller inputs, or end it before this layer"
        raise EngineError(f"A network cannot compute {problem}: {reason}. {remedy}.")
    return [
        kernel
        for kernel in engine.candidates(problem, threads, prepared=True)  # type: ignore[attr-defined]
        if kernel.engine == "jit" and not (kernel.winograd and algorithm is Algorithm.DIRECT)
    ]


class Weights:
    """The packed weights of a network, shared by its programs for all sizes."""

    def __init__(self) -> None:
        # Arrays are not hashable: the key is the id, and the entry keeps the array alive.
        self._packings: dict[tuple[int, DType], tuple[Array, Packings]] = {}

    def layer(self, operation: Convolution, problem: Problem, threads: int, variant: str) -> Layer:
        """Prepare a convolution's primitive and packed weight for a problem."""
        entry = shared_cache().entry(problem, load("jit"), threads, variant)
        key = id(operation.weight), problem.dtype
        _, packings = self._packings.setdefault(key, (operation.weight, Packings()))
        dtype = problem.dtype.numpy
        bias = None if operation.bias is None else operation.bias.astype(dtype, copy=False)
        arrays = (op.operand for op in operation.epilogue if op.name == "prelu")
        slopes = next((np.asarray(array, dtype) for array in arrays), None)
        packed = packings.of(entry.primitive, operation.weight, dtype)
        return Layer(operation, variant, entry, packed, bias, slopes)
