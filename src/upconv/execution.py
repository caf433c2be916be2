"""Running a checked signature: memory, overlap of results and operands, the batch axis.

Two ways in: `run` for one result and `gradients` for up to three. Both leave every caller's array
as it was when they raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from . import memory
from .arrays import Array, check_out, overlap
from .engines.base import Engine, PackedWeight, Primitive
from .errors import ArgumentError, DTypeError, brief
from .primitives import select, shared_cache
from .problem import DataLayout, Direction
from .signatures import Signature
from .threads import get_num_threads

NEEDS = ("x", "weight", "bias")


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """The gradients of one call; None where one was not needed.

    >>> Gradients(x=np.zeros(3)).weight is None
    True
    """

    x: Array | None = None
    weight: Array | None = None
    bias: Array | None = None


def run(
    signature: Signature,
    engine: str | Engine | None,
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    out: Array | None = None,
) -> Array:
    """The result of a signature on operands (a, b) as `Primitive.run` orders them, b not packed."""
    problem = signature.problem
    target = new_result(signature) if out is None else check_out("out", out, *result_of(signature))
    with shared_cache().lease(problem, select(problem, engine), get_num_threads()) as primitive:
        memory.require(primitive.workspace_bytes, "the scratch memory of this call")
        if problem.direction is not Direction.WEIGHT_GRAD:
            b = primitive.pack(b)
        if out is None or not overlap(out, a, b, bias, residual):
            run_batched(primitive, signature, target, a, b, bias, residual)
        else:
            separate = np.array(target)
            run_batched(primitive, signature, separate, a, b, bias, residual)
            target[...] = separate
    return target


def run_batched(
    primitive: Primitive,
    signature: Signature,
    out: Array,
    a: Array,
    b: PackedWeight,
    bias: Array | None,
    residual: Array | None,
) -> None:
    """Run a primitive, giving arrays without a batch axis one of size 1."""
    if not signature.batched:
        a = a[None]
        residual = None if residual is None else residual[None]
        if signature.problem.direction is Direction.WEIGHT_GRAD:
            b = b[None]
        else:
            out = out[None]
    primitive.run(out, a, b, bias, residual)


def result_of(signature: Signature) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of a signature's result."""
    return signature.shape, signature.problem.dtype.numpy


def new_result(signature: Signature) -> Array:
    """An uninitialised array for the result; `MemoryLimitError` if it would not fit."""
    memory.require(signature.nbytes, f"the result, of shape {signature.shape},")
    return np.empty(*result_of(signature))


def gradients(
    signatures: dict[str, Signature],
    engine: str | Engine | None,
    grad: Array,
    x: Array,
    weight: Array,
    needs: Iterable[str],
    out: Gradients | None,
) -> Gradients:
    """The gradients named in `needs`; `signatures` has those of "x" and of "weight"."""
    problem = signatures["x"].problem
    targets = _targets(needs, out, problem.accumulate)
    channel_axis = -1 if problem.layout is DataLayout.NXC else grad.ndim - 1 - problem.rank
    shapes = {"x": x.shape, "weight": weight.shape, "bias": (grad.shape[channel_axis],)}
    given = {name: target for name, target in targets.items() if target is not None}
    for name, target in given.items():
        check_out(f"out.{name}", target, shapes[name], grad.dtype)
    for first, second in combinations(given, 2):
        if overlap(given[first], given[second]):
            raise ArgumentError(
                "out", f"one in which {first} and {second} share memory", "separate arrays"
            )
    # An operand that a result is written over is copied: the next gradient still reads it.
    grad, x, weight = (
        operand.copy() if any(overlap(target, operand) for target in given.values()) else operand
        for operand in (grad, x, weight)
    )
    results: dict[str, Array] = {}
    if "x" in targets:
        results["x"] = run(signatures["x"], engine, grad, weight, out=targets["x"])
    if "weight" in targets:
        operands = _weight_gradient_operands(signatures["x"], grad, x)
        results["weight"] = run(signatures["weight"], engine, *operands, out=targets["weight"])
    if "bias" in targets:
        results["bias"] = _bias_gradient(grad, channel_axis, targets["bias"], problem.accumulate)
    return Gradients(**results)


def _weight_gradient_operands(of_x: Signature, grad: Array, x: Array) -> tuple[Array, Array]:
    """(g, x) of the trilinear form: a convolution's input is its g, the gradient its x."""
    return (x, grad) if of_x.problem.direction is Direction.FORWARD else (grad, x)


def _bias_gradient(grad: Array, channel_axis: int, out: Array | None, accumulate: bool) -> Array:
    """The sum over all axes but the channels; in float64, because its length has no bound."""
    axes = tuple(axis for axis in range(grad.ndim) if axis != channel_axis % grad.ndim)
    with np.errstate(all="ignore"):
        total = np.add.reduce(grad, axis=axes, dtype=np.float64)
        if out is None:
            return np.asarray(total.astype(grad.dtype))
        out[...] = out + total if accumulate else total
    return out


def _targets(
    needs: Iterable[str], out: Gradients | None, accumulate: bool
) -> dict[str, Array | None]:
    """The array to write each needed gradient into, None for a new one."""
    if isinstance(needs, str):
        needs = (needs,)
    try:
        names = tuple(needs)
    except TypeError:
        names = (needs,)  # type: ignore[assignment]
    for name in names:
        if name not in NEEDS:
            raise ArgumentError("needs", brief(needs), f"some of {NEEDS}")
    if out is not None and not isinstance(out, Gradients):
        raise DTypeError("out", f"of type {type(out).__name__}", "an upconv.Gradients or None")
    targets = {name: getattr(out, name) if out else None for name in NEEDS if name in names}
    missing = [name for name, target in targets.items() if target is None]
    if accumulate and missing:
        raise ArgumentError(
            "accumulate",
            "True",
            f"an array to add into in out.{missing[0]}",
            "Pass out=Gradients(...).",
        )
    return targets
