"""The gradients named in `needs`, written into new arrays or the caller's.

Prepared calls (`execution`) compute the gradients of x and the weight; the bias gradient is a sum.
Every call is prepared before any of the caller's arrays is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

import numpy as np

from . import memory
from .argument_checks import Frozen, boolean
from .arrays import (
    Array,
    as_operand,
    check_out,
    copied,
    described,
    optional_operand,
    overlap,
    shares_memory,
)
from .devices import DeviceArray, out_of_memory, same_place
from .engine_choice import Algorithm
from .engines.base import Engine
from .errors import ArgumentError, DTypeError, brief
from .execution import (
    PreparedCall,
    delivered,
    engine_for,
    engine_key,
    new_result_beside,
    remember,
    require_writable,
)
from .keywords import Keywords
from .primitives import shared_cache
from .problem import Direction
from .shape_checks import Signature
from .signatures import GradientName
from .threads import get_num_threads

NEEDS: tuple[GradientName, ...] = ("x", "weight", "bias")


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """The gradients of one call; None for those not requested.

    >>> Gradients(x=np.zeros(3)).weight is None
    True
    """

    x: Array | None = None
    weight: Array | None = None
    bias: Array | None = None


GradientRule = Callable[..., dict[str, Signature]]


@dataclass(slots=True, eq=False)
class _Layer:
    """The signatures of a layer's gradients, and the calls prepared for it so far."""

    signatures: dict[str, Signature]
    ndim: int
    engine: str | Engine | None
    threads: int
    algorithm: Algorithm
    channel_axis: int = field(init=False)
    axes: tuple[int, ...] = field(init=False)
    swaps: bool = field(init=False)
    calls: dict[str, PreparedCall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.signatures["x"].problem
        batch, channel, *_ = problem.layout.to_ncx(problem.rank)
        single = self.ndim < problem.rank + 2  # without a batch axis
        self.channel_axis = channel - (single and channel > batch)
        self.axes = tuple(axis for axis in range(self.ndim) if axis != self.channel_axis)
        # The input of a convolution is g in the trilinear form; its gradient is x.
        self.swaps = problem.direction is Direction.FORWARD

    def call(self, name: str) -> PreparedCall:
        """Return the call that computes the gradient of "x" or "weight"."""
        call = self.calls.get(name)
        if call is None:
            signature = self.signatures[name]
            choice = self.algorithm if name == "x" else Algorithm.DIRECT
            call = PreparedCall(signature, self.engine, self.threads, algorithm=choice, once=True)
            self.calls[name] = call
        return call


def _layer(
    rule: GradientRule,
    engine: str | Engine | None,
    algorithm: Frozen,
    keywords: Keywords,
    accumulate: bool,
    grad: Array,
    x: Array,
    weight: Array,
) -> _Layer:
    """Return the layer from the cache, or a new one, as `execution.prepared` does for a call."""
    threads, calls = get_num_threads(), shared_cache().calls
    shapes = grad.shape, grad.dtype, x.shape, x.dtype, weight.shape, weight.dtype
    key = rule, engine_key(engine), threads, algorithm, keywords, accumulate, shapes
    layer: _Layer | None = calls.get(key)
    if layer is None:
        signatures = rule(described(grad), described(x), described(weight), keywords, accumulate)
        layer = _Layer(signatures, grad.ndim, engine, threads, Algorithm.of(algorithm))
        remember(key, layer)
    return layer


def gradients(
    rule: GradientRule,
    engine: str | Engine | None,
    algorithm: Frozen,
    keywords: Keywords,
    grad: Any,
    x: Any,
    weight: Any,
    needs: Iterable[str],
    out: Gradients | None,
    accumulate: bool,
) -> Gradients:
    """Return the gradients named in `needs`; `rule` gives the signatures of "x" and "weight"."""
    grad, x, weight = as_operand("grad", grad), as_operand("x", x), as_operand("weight", weight)
    accumulate = boolean("accumulate", accumulate)
    engine = engine_for(engine, x=x, grad=grad, weight=weight)
    if type(grad) is DeviceArray and isinstance(out, Gradients):
        named = {
            f"out.{name}": optional_operand(f"out.{name}", getattr(out, name)) for name in NEEDS
        }
        same_place({"grad": grad} | named)
        for name, target in named.items():
            require_writable(name, target)
        out = Gradients(*named.values())
    layer = _layer(rule, engine, algorithm, keywords, accumulate, grad, x, weight)
    targets = gradient_targets(NEEDS, Gradients, needs, out, accumulate=accumulate)
    calls = [(name, layer.call(name)) for name in ("x", "weight") if name in targets]
    operands: dict[str, Array] = {}
    if out is not None:
        channels = (grad.shape[layer.channel_axis],)
        shapes = {"x": x.shape, "weight": weight.shape, "bias": channels}
        operands = fitting(targets, shapes, dict.fromkeys(shapes, grad.dtype))
        # Copy an operand that a result would overwrite: the next gradient still reads it.
        grad, x, weight = (
            copied("a copy of an operand that out overlaps", operand)
            if overlap(operand, operands.values())
            else operand
            for operand in (grad, x, weight)
        )
        for _, call in calls:  # any refusal comes before the caller's arrays are written
            call.entry()
    results: dict[str, Array] = {
        name: operands[name] if name in operands else new_result_beside(call.signature, grad)
        for name, call in calls
    }
    if "bias" in targets:
        results["bias"] = _bias_gradient(layer, grad, operands.get("bias"), accumulate=accumulate)
    for name, call in calls:
        a, b = (grad, weight) if name == "x" else (x, grad) if layer.swaps else (grad, x)
        call.run(results[name], a, b)
    if type(grad) is DeviceArray:
        results = {name: delivered(target, None) for name, target in results.items()}
    elif out is not None:  # return the objects that the caller passed
        results |= {name: target for name, target in targets.items() if target is not None}
    return Gradients(**results)


_ROWS = 256  # positions that are summed in the operand's own dtype
_SMALL = 1 << 12


@memory.bounded("the bias gradient")
def _bias_gradient(layer: _Layer, grad: Array, out: Array | None, *, accumulate: bool) -> Array:
    """Return the sum over all axes but the channels, in float64 because its length has no bound.

    NumPy sums float32 values in float32 in less than half the time it takes in float64. Short runs
    of positions are therefore summed in float32 first: one image if channels come first, where
    NumPy sums pairwise, and 256 positions if they come last.
    """
    channel_axis, axes, sums = layer.channel_axis, layer.axes, grad
    if isinstance(grad, DeviceArray):
        return device_total(grad, axes, out, accumulate=accumulate)
    memory.require(3 * 8 * grad.shape[channel_axis], "the bias gradient")
    with np.errstate(all="ignore"):
        if grad.size > _SMALL and grad.dtype == np.float32 and grad.flags.c_contiguous:
            if channel_axis == grad.ndim - 1:
                rows, axes = grad.reshape(-1, grad.shape[-1]), (0,)
                complete = len(rows) // _ROWS * _ROWS
                blocks = rows[:complete].reshape(-1, _ROWS, grad.shape[-1])
                sums = np.concatenate([np.add.reduce(blocks, axis=1), rows[complete:]])
            else:
                shape, axes = grad.shape[: channel_axis + 1], axes[:channel_axis]
                sums = np.add.reduce(grad.reshape(*shape, -1), axis=-1)
        total = np.asarray(np.add.reduce(sums, axis=axes, dtype=np.float64))
    return rounded_total(total, grad.dtype, out, accumulate=accumulate)


def device_total(grad: DeviceArray, axes: tuple[int, ...], out: Any, *, accumulate: bool) -> Any:
    """Sum over axes on a device in float64, into `out` or a new array."""
    with grad.library.on(grad.device), out_of_memory(grad.library, "the bias gradient"):
        total = grad.library.sums(grad.native, axes)
        target = grad.empty(tuple(total.shape)) if out is None else out
        target.native[...] = target.native + total if accumulate else total
    return target


def rounded_total(
    total: Array, dtype: np.dtype[Any], out: Array | None, *, accumulate: bool
) -> Array:
    """Write a float64 total to `out`, add it to `out`, or return it as a new array of `dtype`."""
    with np.errstate(all="ignore"):
        if out is None:
            return total.astype(dtype)
        out[...] = out + total if accumulate else total
    return out


def fitting(
    targets: Mapping[str, Array | None],
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, np.dtype[Any]],
) -> dict[str, Array]:
    """Return the caller's targets after checking that they fit and share no memory."""
    operands = {
        name: check_out(f"out.{name}", target, shapes[name], dtypes[name])
        for name, target in targets.items()
        if target is not None
    }
    for first, second in combinations(operands, 2):  # one result would overwrite the other
        if shares_memory(operands[first], operands[second]):
            got = f"one in which {first} and {second} share memory"
            raise ArgumentError("out", got, "separate arrays", "Copy one of them.")
    return operands


def gradient_targets(
    known: tuple[str, ...],
    holder: type,
    needs: Iterable[str],
    out: object,
    *,
    accumulate: bool,
) -> dict[str, Array | None]:
    """Return the target array of each of the `known` gradients in `needs`; None for a new array."""
    if needs is known and out is None and not accumulate:
        return dict.fromkeys(known)  # the most frequent case
    if isinstance(needs, str):
        names: tuple[object, ...] = (needs,)
    else:
        try:
            names = tuple(islice(needs, len(known) + 1))  # bounded: an iterator may never end
        except Exception:  # not iterable, or its iterator fails
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
