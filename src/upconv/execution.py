"""Running a checked signature: memory, overlap of results and operands, the batch axis.

Two ways in: `run` for one result and `gradients` for up to three. Engines are chosen, primitives
built and memory asked for before anything is written, so a refusal leaves every caller's array as
it was. Ctrl-C, or an engine that fails, in the middle of the work may leave results half written.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np

from . import memory
from .arrays import Array, check_out, copied, overlap, shares_memory
from .choices import Algorithm, tuning_asked
from .engines.base import Engine, PackedWeight, Primitive
from .errors import ArgumentError, DTypeError, brief
from .primitives import Lease, shared_cache
from .problem import DataLayout, Direction, Problem
from .signatures import Signature
from .threads import get_num_threads
from .tuning import selected

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
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Array:
    """The result of a signature on operands (a, b) as `Primitive.run` orders them, b not packed."""
    problem = signature.problem
    target = result_array(signature, out, (a, b, bias, residual))
    with _lease(problem, engine, algorithm) as primitive:
        _run_on(primitive, signature, target, a, b, bias, residual)
    return delivered(target, out)


def _lease(
    problem: Problem,
    engine: str | Engine | None,
    algorithm: Algorithm = Algorithm.DIRECT,
) -> Lease[Primitive]:
    """A primitive for a problem, whose scratch memory would fit."""
    threads = get_num_threads()
    chosen = selected(problem, engine, threads, tune=tuning_asked(), algorithm=algorithm, once=True)
    lease = shared_cache().lease(problem, chosen.engine, threads, chosen.variant)
    memory.require(lease.primitive.workspace_bytes, "the scratch memory of this call")
    return lease


def result_array(signature: Signature, out: Array | None, operands: Iterable[Any]) -> Array:
    """Where to compute: a new array, `out` itself, or a copy of it where it overlaps an operand."""
    if out is None:
        return _new_result(signature)
    target = check_out("out", out, signature.shape, signature.problem.dtype.numpy)
    return copied("a copy of out", target) if overlap(target, operands) else target


def delivered(target: Array, out: Array | None) -> Array:
    """`out` with the result in it, or the new array where there is no `out`."""
    if out is None:
        return target
    if target is not out and not np.may_share_memory(target, out):
        out[...] = target
    return out


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
    try:
        primitive.run(out, a, b, bias, residual)
    except MemoryError as error:
        raise memory.refused("the scratch memory of this call", error) from None


def _run_on(
    primitive: Primitive,
    signature: Signature,
    out: Array,
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
) -> None:
    """`run_batched` with the weight packed first, where b is one."""
    if signature.problem.direction is not Direction.WEIGHT_GRAD:
        b = packed(primitive, b)
    run_batched(primitive, signature, out, a, b, bias, residual)


def packed(primitive: Primitive, weight: Array) -> PackedWeight:
    """The weight in the primitive's order; `MemoryLimitError` if it would not fit."""
    try:
        return primitive.pack(weight)
    except MemoryError as error:
        raise memory.refused("the packed weight", error) from None


def _new_result(signature: Signature) -> Array:
    """An uninitialised array for the result; `MemoryLimitError` if it would not fit."""
    if signature.nbytes > memory.ALWAYS_FINE:  # the words below are worth it only then
        memory.require(signature.nbytes, f"the result, of shape {signature.shape},")
    try:
        return np.empty(signature.shape, signature.problem.dtype.numpy)
    except (MemoryError, ValueError) as error:  # ValueError: more than any array can have
        raise memory.refused(f"the result, of shape {signature.shape},", error) from None


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
    targets = gradient_targets(NEEDS, Gradients, needs, out, accumulate=problem.accumulate)
    channel_axis = -1 if problem.layout is DataLayout.NXC else grad.ndim - 1 - problem.rank
    shapes = {"x": x.shape, "weight": weight.shape, "bias": (grad.shape[channel_axis],)}
    given = {
        name: check_out(f"out.{name}", target, shapes[name], grad.dtype)
        for name, target in targets.items()
        if target is not None
    }
    if given:
        require_separate(given)
        # An operand that a result is written over is copied: the next gradient still reads it.
        grad, x, weight = (
            copied("a copy of an operand that out overlaps", operand)
            if overlap(operand, given.values())
            else operand
            for operand in (grad, x, weight)
        )
    operands = {"x": (grad, weight), "weight": _weight_gradient_operands(signatures["x"], grad, x)}
    bias_total = _bias_total(grad, channel_axis) if "bias" in targets else None
    names: list[str] = [name for name in operands if name in targets]
    with ExitStack() as held:
        work: dict[str, Primitive] = {}
        for name in names:
            work[name] = held.enter_context(_lease(signatures[name].problem, engine))
        results: dict[str, Array] = {
            name: given[name] if name in given else _new_result(signatures[name]) for name in work
        }
        for name, primitive in work.items():
            _run_on(primitive, signatures[name], results[name], *operands[name])
    if bias_total is not None:
        results["bias"] = _bias_gradient(
            bias_total, grad.dtype, given.get("bias"), accumulate=problem.accumulate
        )
    return Gradients(**{name: _or(targets[name], result) for name, result in results.items()})


def _or(target: Array | None, result: Array) -> Array:
    """The very object the caller passed, where one was passed."""
    return result if target is None else target


def _weight_gradient_operands(of_x: Signature, grad: Array, x: Array) -> tuple[Array, Array]:
    """(g, x) of the trilinear form: a convolution's input is its g, the gradient its x."""
    return (x, grad) if of_x.problem.direction is Direction.FORWARD else (grad, x)


_ROWS = 256  # positions that are added up in the operand's own type


def _bias_total(grad: Array, channel_axis: int) -> Array:
    """The sum over all axes but the channels; in float64, because its length has no bound.

    NumPy sums float32 in less than half the time that it takes into float64. Runs of positions are
    short enough for that: of one image where channels come first, which NumPy adds up by halves,
    of 256 positions where they come last.
    """
    axes = tuple(axis for axis in range(grad.ndim) if axis != channel_axis % grad.ndim)
    memory.require(3 * 8 * grad.shape[channel_axis], "the bias gradient")
    with np.errstate(all="ignore"):
        if grad.dtype == np.float32 and grad.flags.c_contiguous and grad.size:
            if channel_axis == -1:
                rows = grad.reshape(-1, grad.shape[-1])
                some = len(rows) // _ROWS * _ROWS
                blocks = rows[:some].reshape(-1, _ROWS, grad.shape[-1])
                sums = np.concatenate([np.add.reduce(blocks, axis=1), rows[some:]])
                return np.asarray(np.add.reduce(sums, axis=0, dtype=np.float64))
            inner = np.add.reduce(grad.reshape(*grad.shape[: channel_axis + 1], -1), axis=-1)
            axes = tuple(axis for axis in axes if axis < channel_axis)
            return np.asarray(np.add.reduce(inner, axis=axes, dtype=np.float64))
        return np.asarray(np.add.reduce(grad, axis=axes, dtype=np.float64))


def _bias_gradient(
    total: Array, dtype: np.dtype[Any], out: Array | None, *, accumulate: bool
) -> Array:
    """The total in the caller's array, or in a new one of the caller's type."""
    with np.errstate(all="ignore"):
        if out is None:
            return total.astype(dtype)
        out[...] = out + total if accumulate else total
    return out


def require_separate(given: dict[str, Array]) -> None:
    """Refuse an `out` whose arrays, by name, share memory: one result would be lost."""
    for first, second in combinations(given, 2):
        if shares_memory(given[first], given[second]):
            raise ArgumentError(
                "out",
                f"one in which {first} and {second} share memory",
                "separate arrays",
                "Copy one of them.",
            )


def gradient_targets(
    known: tuple[str, ...],
    holder: type,
    needs: Iterable[str],
    out: object,
    *,
    accumulate: bool,
) -> dict[str, Array | None]:
    """The array to write each needed gradient into, None for a new one.

    `known` are the names there are, `holder` is what `out` is made with.
    """
    if isinstance(needs, str):
        names: tuple[object, ...] = (needs,)
    else:
        try:
            names = tuple(islice(needs, len(known) + 1))  # bounded: an iterator may never end
        except Exception:  # whatever is no iterable, or fails as one
            names = (needs,)
    if len(names) > len(known) or any(
        not isinstance(name, str) or name not in known for name in names
    ):
        remedy = f"Name the gradients you want, as in needs=({known[0]!r},)."
        raise ArgumentError("needs", brief(needs), f"some of {known}", remedy)
    if out is not None and not isinstance(out, holder):
        fields = ", ".join(f"{name}=..." for name in known)
        got, expected = f"of type {type(out).__name__}", f"an upconv.{holder.__name__} or None"
        raise DTypeError("out", got, expected, f"Write out=upconv.{holder.__name__}({fields}).")
    targets = {name: getattr(out, name, None) for name in known if name in names}
    missing = [name for name, target in targets.items() if target is None]
    if accumulate and missing:
        expected = f"an array to add into in out.{missing[0]}"
        raise ArgumentError("accumulate", "True", expected, f"Pass out={holder.__name__}(...).")
    return targets
