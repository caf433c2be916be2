"""Prepared calls, from arguments to a running primitive: a repeated call needs one look-up.

The key of a call holds everything that the call depends on: the operation, shapes and dtypes,
keywords, activation, engine and threads. Strides are not in the key, since every primitive accepts
any strides. The value is a `PreparedCall`: a checked signature, its engine, and the cache entry of
the primitive. `PrimitiveCache.calls` keeps it until the cache is cleared.

The engine is chosen, the primitive built and memory reserved before anything is written. A refusal
therefore leaves the caller's arrays unchanged. Ctrl-C, or an engine that fails during the
computation, may leave results half written.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from . import memory
from .argument_checks import Frozen
from .arrays import Array, as_operand, check_out, copied, described, overlap
from .devices import DeviceArray, same_place
from .engine_choice import Algorithm, engine_on, tuning_asked
from .engines.base import Engine, PackedWeight, Primitive, on_device
from .errors import DTypeError
from .keywords import Keywords
from .primitives import Entry, shared_cache
from .problem import Direction, Problem
from .shape_checks import Signature
from .threads import get_num_threads
from .tuning import selected


class Packings:
    """Packed copies of one weight, one per packing order. Primitives with the same order share a
    copy, whatever their input size. A copy is kept while a call holds it, or while it is one of
    the latest two. `made` counts the packings."""

    def __init__(self) -> None:
        self._packed: WeakValueDictionary[Hashable, PackedWeight] = WeakValueDictionary()
        self._latest: deque[PackedWeight] = deque(maxlen=2)
        self.made = 0

    def of(
        self, primitive: Primitive, weight: Array, dtype: np.dtype[Any] | None = None
    ) -> PackedWeight:
        """Return the weight in the primitive's order; packing first converts it to `dtype`."""
        order = getattr(primitive, "order", None)
        packed = None if order is None else self._packed.get(order)
        if packed is None:
            self.made += 1
            weight = weight if dtype is None else weight.astype(dtype, copy=False)
            packed = _pack(primitive, weight)
            # Another engine packs a non-finite weight, for one size only.
            if order is not None and not hasattr(packed, "engine"):
                self._packed[order] = packed
                self._latest.append(packed)
        return packed


class PreparedCall:
    """A checked signature, the engine that computes it, and the cache entry of its primitive."""

    __slots__ = ("_entry", "_threads", "asked", "engine", "packs", "signature", "variant")

    @memory.bounded("the primitive of this call")
    def __init__(
        self,
        signature: Signature,
        engine: str | Engine | None,
        threads: int,
        tune: bool | None = None,
        algorithm: Algorithm = Algorithm.DIRECT,
        *,
        once: bool = False,
    ) -> None:
        """Choose the engine; `once` means that weights are packed for one run only."""
        problem = signature.problem
        # `asked` keeps the engine alive, since its id is part of a key.
        self.signature, self.asked, self._threads = signature, engine, threads
        chosen = selected(
            problem, engine, threads, tune=tuning_asked(tune), algorithm=algorithm, once=once
        )
        self.engine, self.variant = chosen.engine, chosen.variant
        self.packs = problem.direction is not Direction.WEIGHT_GRAD
        self._entry: Callable[[], Entry | None] = lambda: None

    def entry(self) -> Entry:
        """Return the primitive's entry, rebuilt if it was evicted; may raise `MemoryLimitError`."""
        cache, entry = shared_cache(), self._entry()
        if entry is None or not cache.used(entry):
            problem = self.signature.problem
            try:
                entry = cache.entry(problem, self.engine, self._threads, self.variant)
            except MemoryError as error:
                raise memory.refused("the primitive of this call", error) from None
            self._entry = weakref.ref(entry)
        if entry.primitive.workspace_bytes > memory.ALWAYS_FINE and not on_device(self.engine):
            memory.require(entry.primitive.workspace_bytes, "the scratch memory of this call")
        return entry

    def pack(self, weight: Array, packings: Packings | None = None) -> PackedCall:
        """Pack `weight`, which has the problem's weight shape, for all later runs of the call.

        packings: the packed copies of this weight, to share them with other input sizes.
        """
        entry = self.entry()
        order = (packings or Packings()).of(entry.primitive, weight)
        # Another engine may have packed a non-finite weight.
        name = getattr(order, "engine", self.engine.name)
        return PackedCall(self.signature, name, entry, entry.primitive, order)

    def run(
        self,
        out: Array,
        a: Array,
        b: Array,
        bias: Array | None = None,
        residual: Array | None = None,
        slopes: Array | None = None,
    ) -> None:
        """Compute on operands (a, b) in the order of `Primitive.run`; b is not packed."""
        entry = self.entry()  # this variable keeps the primitive open until the call ends
        run = entry.primitive.run
        try:
            if self.packs:
                run_once = getattr(entry.primitive, "run_once", None)
                if run_once is None:
                    b = _pack(entry.primitive, b)
                else:
                    run = run_once
            if not self.signature.batched:
                out, a, b, residual = _with_batch(self.packs, out, a, b, residual)
            if slopes is None:  # an engine that refuses PReLU need not know the argument
                run(out, a, b, bias, residual)
            else:
                run(out, a, b, bias, residual, slopes)
        except MemoryError as error:
            raise memory.refused("the scratch memory of this call", error) from None


class PackedCall(NamedTuple):
    """A prepared call with its weight in the primitive's order; several threads may run it."""

    signature: Signature
    engine: str
    entry: Entry
    primitive: Primitive
    weight: PackedWeight

    def run(
        self,
        out: Array,
        a: Array,
        bias: Array | None = None,
        residual: Array | None = None,
        slopes: Array | None = None,
    ) -> None:
        """Compute on x, or on an output gradient, with the weight."""
        if not self.signature.batched:
            out, a, _, residual = _with_batch(True, out, a, None, residual)
        try:
            if slopes is None:
                self.primitive.run(out, a, self.weight, bias, residual)
            else:
                self.primitive.run(out, a, self.weight, bias, residual, slopes)
        except MemoryError as error:
            raise memory.refused("the scratch memory of this call", error) from None


def engine_for(engine: str | Engine | None, **operands: Array | None) -> str | Engine | None:
    """Return the engine that a call requests, bound to its arrays' device if they are on one.

    Raises `DTypeError` for arrays on different devices, and `EngineRefusal` for an engine that
    cannot compute there.
    """
    for operand in operands.values():
        if isinstance(operand, DeviceArray):
            same_place(operands)
            return _engine_on(engine, operand)
    return engine


def _engine_on(engine: str | Engine | None, operand: DeviceArray) -> Engine:
    """Call `engine_choice.engine_on`, or return its cached result."""
    key = "engine on", engine_key(engine), id(operand.library), operand.device
    calls = shared_cache().calls
    entry: tuple[Engine, object] | None = calls.get(key)
    if entry is None:
        bound = engine_on(engine, operand.library, operand.device)
        entry = bound, engine  # keep `engine` alive: its id is in the key
        remember(key, entry)
    return entry[0]


Rule = Callable[..., Signature]
_MAX_CALLS = 4096


def prepared(
    rule: Rule,
    engine: str | Engine | None,
    algorithm: Frozen,
    keywords: Keywords,
    activation: Frozen,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    residual: Array | None = None,
) -> PreparedCall:
    """Return the prepared call for these arrays, from the cache or by a rule of `shape_checks`."""
    threads, calls = get_num_threads(), shared_cache().calls
    key = (
        rule,
        engine_key(engine),
        threads,
        algorithm,
        keywords,
        activation,
        x.shape,
        x.dtype,
        weight.shape,
        weight.dtype,
        None if bias is None else (bias.shape, bias.dtype),
        None if residual is None else (residual.shape, residual.dtype),
    )
    call: PreparedCall | None = calls.get(key)
    if call is None:
        operands = described(x), described(weight), described(bias), described(residual)
        signature, choice = rule(*operands, keywords, activation), Algorithm.of(algorithm)
        call = PreparedCall(signature, engine, threads, algorithm=choice, once=True)
        remember(key, call)
    return call


def prepared_problem(
    problem: Problem,
    engine: str | Engine | None,
    threads: int,
    algorithm: Algorithm = Algorithm.DIRECT,
    *,
    once: bool = False,
) -> PreparedCall:
    """Return the prepared call for a problem, for a front end that has checked its operands."""
    key = problem, engine_key(engine), threads, algorithm, once
    call: PreparedCall | None = shared_cache().calls.get(key)
    if call is None:
        signature = Signature.whole(problem)
        call = PreparedCall(signature, engine, threads, algorithm=algorithm, once=once)
        remember(key, call)
    return call


def run(
    problem: Problem,
    engine: str | Engine | None,
    a: Array,
    b: Array,
    bias: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """Compute a problem into a new array; (a, b) as in `Primitive.run`, with b not packed."""
    call = prepared_problem(problem, engine, get_num_threads())
    out = new_result(call.signature)
    call.run(out, a, b, bias, residual)
    return out


def engine_key(engine: object) -> Hashable:
    """Return the key of the requested engine; the prepared call keeps the engine alive."""
    return engine if engine is None or isinstance(engine, str) else id(engine)


def remember(key: Hashable, call: object) -> None:
    """Store a prepared call; a full table is cleared, since so many calls are seldom repeated."""
    calls = shared_cache().calls
    if len(calls) >= _MAX_CALLS:
        calls.clear()
    calls[key] = call


def result_array(signature: Signature, out: Array | None, operands: Sequence[Any]) -> Array:
    """Return the array to compute into: a new one, `out`, or a copy if `out` overlaps operands."""
    if isinstance(operands[0], DeviceArray):
        return _device_result(signature, out, operands)
    if out is None:
        return new_result(signature)
    target = check_out("out", out, signature.shape, signature.problem.dtype.numpy)
    return copied("a copy of out", target) if overlap(target, operands) else target


def delivered(target: Array, out: Array | None) -> Array:
    """Return `out` with the result in it, or the new array if there is no `out`."""
    if isinstance(target, DeviceArray):
        return _delivered_on_device(target, out)
    if out is None:
        return target
    if target is not out and not np.may_share_memory(target, out):
        out[...] = target
    return out


def new_result_beside(signature: Signature, operand: Array) -> Array:
    """Return an uninitialized array for the result, on the same device as an operand."""
    if isinstance(operand, DeviceArray):
        return operand.empty(signature.shape, signature.problem.dtype.numpy)
    return new_result(signature)


def _device_result(signature: Signature, out: Any, operands: Sequence[Any]) -> Array:
    """Choose the result array on a device; refuse immutable arrays, such as JAX's."""
    x = operands[0]
    if out is None:
        return new_result_beside(signature, x)
    target: Any = as_operand("out", out)
    same_place({"x": x, "out": target})
    require_writable("out", target)
    check_out("out", target, signature.shape, signature.problem.dtype.numpy)
    return copied("a copy of out", target) if overlap(target, operands) else target


def require_writable(name: str, target: Any) -> None:
    """Refuse immutable arrays, such as JAX's."""
    if getattr(target, "given_back", None) is not None:
        expected = "None: this library's arrays are immutable"
        raise DTypeError(name, f"an array of {target.origin}", expected, "Omit it.")


def _delivered_on_device(target: DeviceArray, out: Any) -> Any:
    """Return the result as the caller's type of array."""
    if out is None:
        return target.native if target.given_back is None else target.given_back(target.native)
    destination: Any = as_operand("out", out)
    if target.pointer != destination.pointer:  # `out` overlaps an operand
        with target.library.on(target.device):
            destination.native[...] = target.native
    return out


def _with_batch(
    packs: bool, out: Array, a: Array, b: PackedWeight, residual: Array | None
) -> tuple[Array, Array, PackedWeight, Array | None]:
    """Add a batch axis to all arrays but the weight, which is b if `packs`, otherwise `out`."""
    residual = None if residual is None else residual[None]
    return (out[None], a[None], b, residual) if packs else (out, a[None], b[None], residual)


def _pack(primitive: Primitive, weight: Array) -> PackedWeight:
    """Return the weight in the primitive's order; `MemoryLimitError` if it does not fit."""
    try:
        return primitive.pack(weight)
    except MemoryError as error:
        raise memory.refused("the packed weight", error) from None


def new_result(signature: Signature) -> Array:
    """Return an uninitialized array for the result; `MemoryLimitError` if it does not fit."""
    if signature.nbytes > memory.ALWAYS_FINE:  # small results need no check and no message
        memory.require(signature.nbytes, f"the result, of shape {signature.shape},")
    try:
        return np.empty(signature.shape, signature.problem.dtype.numpy)
    except (MemoryError, ValueError) as error:  # ValueError: larger than any array can be
        raise memory.refused(f"the result, of shape {signature.shape},", error) from None
