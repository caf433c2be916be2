"""Prepared calls: from a call's arguments to a running primitive, with one look-up when repeated.

The key of a call holds everything that it depends on: the operation, shapes and dtypes, keywords,
activation, engine and threads. It has no strides, since every primitive takes any. The value is a
`PreparedCall`: a checked signature, its engine, and the entry of the cache that holds the
primitive. `PrimitiveCache.calls` keeps it until the cache is cleared.

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
from .arrays import Array, as_operand, check_out, copied, described, overlap
from .checks import Frozen
from .devices import DeviceArray, same_place
from .engine_choice import Algorithm, engine_on, tuning_asked
from .engines.base import Engine, PackedWeight, Primitive, on_device
from .errors import DTypeError
from .keywords import Keywords
from .primitives import Entry, shared_cache
from .problem import Direction, Problem
from .shapes import Signature
from .threads import get_num_threads
from .tuning import selected


class Packings:
    """A weight in the orders of primitives: packed once for all sizes whose primitives have one
    order, and kept as long as a call holds it or it is one of the latest two. `made` counts how
    often it was packed."""

    def __init__(self) -> None:
        self._packed: WeakValueDictionary[Hashable, PackedWeight] = WeakValueDictionary()
        self._latest: deque[PackedWeight] = deque(maxlen=2)
        self.made = 0

    def of(
        self, primitive: Primitive, weight: Array, dtype: np.dtype[Any] | None = None
    ) -> PackedWeight:
        """The weight in the primitive's order; it is converted to `dtype` only to be packed."""
        order = getattr(primitive, "order", None)
        packed = None if order is None else self._packed.get(order)
        if packed is None:
            self.made += 1
            weight = weight if dtype is None else weight.astype(dtype, copy=False)
            packed = _packed(primitive, weight)
            # A weight that is not finite is another engine's, which computes it at one size.
            if order is not None and not hasattr(packed, "engine"):
                self._packed[order] = packed
                self._latest.append(packed)
        return packed


class PreparedCall:
    """A checked signature, the engine that does it, and the cache's entry of its primitive."""

    __slots__ = ("_entry", "_threads", "asked", "engine", "packs", "signature", "variant")

    @memory.bounded("what is prepared for this call")
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
        """Choose the engine; `once` says that weights are packed for one run only."""
        problem = signature.problem
        # `asked` keeps the engine alive whose id is in a key.
        self.signature, self.asked, self._threads = signature, engine, threads
        chosen = selected(
            problem, engine, threads, tune=tuning_asked(tune), algorithm=algorithm, once=once
        )
        self.engine, self.variant = chosen.engine, chosen.variant
        self.packs = problem.direction is not Direction.WEIGHT_GRAD
        self._entry: Callable[[], Entry | None] = lambda: None

    def entry(self) -> Entry:
        """The primitive's entry, built anew if the cache dropped it; or `MemoryLimitError`."""
        cache, entry = shared_cache(), self._entry()
        if entry is None or not cache.used(entry):
            problem = self.signature.problem
            try:
                entry = cache.entry(problem, self.engine, self._threads, self.variant)
            except MemoryError as error:
                raise memory.refused("what is prepared for this call", error) from None
            self._entry = weakref.ref(entry)
        if entry.primitive.workspace_bytes > memory.ALWAYS_FINE and not on_device(self.engine):
            memory.require(entry.primitive.workspace_bytes, "the scratch memory of this call")
        return entry

    def pack(self, weight: Array, packings: Packings | None = None) -> PackedCall:
        """The call with `weight`, of the problem's weight shape, packed for all later runs.

        packings: of this weight, where other sizes have packed it or will.
        """
        entry = self.entry()
        order = (packings or Packings()).of(entry.primitive, weight)
        # A weight that is not finite is another engine's.
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
        """Compute on operands (a, b) as `Primitive.run` orders them, b not packed."""
        entry = self.entry()  # which is not closed before this call has ended
        run = entry.primitive.run
        try:
            if self.packs:
                run_once = getattr(entry.primitive, "run_once", None)
                if run_once is None:
                    b = _packed(entry.primitive, b)
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
    """A prepared call with its weight in the primitive's order; threads may run it at once."""

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
    """The engine that a call asks for: one that is bound to the device where its arrays lie.

    Raises `DTypeError` where arrays lie in different places, and `EngineRefusal` for an engine that
    does not compute there.
    """
    for operand in operands.values():
        if isinstance(operand, DeviceArray):
            same_place(operands)
            return _engine_on(engine, operand)
    return engine


def _engine_on(engine: str | Engine | None, operand: DeviceArray) -> Engine:
    """`engine_choice.engine_on`, cached."""
    key = "engine on", engine_key(engine), id(operand.library), operand.device
    calls = shared_cache().calls
    entry: tuple[Engine, object] | None = calls.get(key)
    if entry is None:
        bound = engine_on(engine, operand.library, operand.device)
        entry = bound, engine  # keep `engine` alive: its id is in the key
        remember(key, entry)
    return entry[0]


Rule = Callable[..., Signature]
_MOST_CALLS = 4096


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
    """The call of a rule of `shapes` on these arrays, prepared now unless it was before."""
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
    """The call that computes a problem, for a front end that has checked its operands."""
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
    """A new result of a problem on operands (a, b) as `Primitive.run` orders them, b not packed."""
    call = prepared_problem(problem, engine, get_num_threads())
    out = new_result(call.signature)
    call.run(out, a, b, bias, residual)
    return out


def engine_key(engine: object) -> Hashable:
    """The key of the requested engine; the prepared call keeps the engine alive."""
    return engine if engine is None or isinstance(engine, str) else id(engine)


def remember(key: Hashable, call: object) -> None:
    """Keep a prepared call; a full table is emptied, as so many calls are seldom repeated."""
    calls = shared_cache().calls
    if len(calls) >= _MOST_CALLS:
        calls.clear()
    calls[key] = call


def result_array(signature: Signature, out: Array | None, operands: Sequence[Any]) -> Array:
    """Return a new array, `out`, or a copy of it where it overlaps an operand, to compute into."""
    if isinstance(operands[0], DeviceArray):
        return _device_result(signature, out, operands)
    if out is None:
        return new_result(signature)
    target = check_out("out", out, signature.shape, signature.problem.dtype.numpy)
    return copied("a copy of out", target) if overlap(target, operands) else target


def delivered(target: Array, out: Array | None) -> Array:
    """`out` with the result in it, or the new array where there is no `out`."""
    if isinstance(target, DeviceArray):
        return _delivered_on_device(target, out)
    if out is None:
        return target
    if target is not out and not np.may_share_memory(target, out):
        out[...] = target
    return out


def new_result_beside(signature: Signature, operand: Array) -> Array:
    """An uninitialised array for the result, where an operand lies."""
    if isinstance(operand, DeviceArray):
        return operand.empty(signature.shape, signature.problem.dtype.numpy)
    return new_result(signature)


def _device_result(signature: Signature, out: Any, operands: Sequence[Any]) -> Array:
    """`result_array` on a device; JAX's arrays and the like cannot be written into."""
    x = operands[0]
    if out is None:
        return new_result_beside(signature, x)
    target: Any = as_operand("out", out)
    same_place({"x": x, "out": target})
    require_writable("out", target)
    check_out("out", target, signature.shape, signature.problem.dtype.numpy)
    return copied("a copy of out", target) if overlap(target, operands) else target


def require_writable(name: str, target: Any) -> None:
    """Refuse arrays of libraries that never write into one, such as JAX."""
    if getattr(target, "given_back", None) is not None:
        expected = "None: this library's arrays are never written into"
        raise DTypeError(name, f"an array of {target.origin}", expected, "Leave it out.")


def _delivered_on_device(target: DeviceArray, out: Any) -> Any:
    """The caller's kind of array with the result in it."""
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
    """The arrays with a batch axis; b is a weight if it `packs`, and else `out` is one."""
    residual = None if residual is None else residual[None]
    return (out[None], a[None], b, residual) if packs else (out, a[None], b[None], residual)


def _packed(primitive: Primitive, weight: Array) -> PackedWeight:
    """The weight in the primitive's order; `MemoryLimitError` if it would not fit."""
    try:
        return primitive.pack(weight)
    except MemoryError as error:
        raise memory.refused("the packed weight", error) from None


def new_result(signature: Signature) -> Array:
    """An uninitialised array for the result; `MemoryLimitError` if it would not fit."""
    if signature.nbytes > memory.ALWAYS_FINE:  # the words below are worth it only then
        memory.require(signature.nbytes, f"the result, of shape {signature.shape},")
    try:
        return np.empty(signature.shape, signature.problem.dtype.numpy)
    except (MemoryError, ValueError) as error:  # ValueError: more than any array can have
        raise memory.refused(f"the result, of shape {signature.shape},", error) from None
